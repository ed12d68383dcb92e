package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/redis/go-redis/v9"

	"leeway/broker/config"
)

// Flags are those of every process.
type Flags struct {
	Config   string `env:"LEEWAY_CONFIG" placeholder:"FILE" help:"YAML configuration.${config_help}"`
	EnvFile  string `env:"LEEWAY_ENV_FILE" placeholder:"FILE" help:"KEY=VALUE lines that win over the environment. SIGHUP reads it, and the configuration, again."`
	LogLevel string `env:"LEEWAY_LOG_LEVEL" enum:"debug,info,warn,error" default:"info" help:"debug, info, warn or error."`
}

// Process is a running process: an API, a worker or both.
type Process interface {
	Reload(cfg *config.Config) error
	Stop(ctx context.Context) error
}

// Command is a program that is one process from its start to its end.
type Command struct {
	Name, Description string
	// ConfigHelp is what is to be said of the configuration file besides.
	ConfigHelp string
	// Flags is a pointer to what the command line is read into, and Common to the
	// Flags in it.
	Flags  any
	Common *Flags
	// Start starts the process and logs that it runs.
	Start func(o Options) (Process, error)
}

// Run runs the command until a signal to stop arrives and returns its exit code.
func (c *Command) Run(args, environ []string, stdout, stderr io.Writer) int {
	fail := func(code int, err error) int {
		_, _ = fmt.Fprintf(stderr, "%s: %v\n", c.Name, err)
		return code
	}
	parser := kong.Must(c.Flags, kong.Name(c.Name), kong.Description(c.Description),
		kong.Writers(stdout, stderr), kong.Vars{"config_help": c.ConfigHelp})
	if _, err := parser.Parse(args); err != nil {
		return fail(2, err)
	}
	load := func() (*config.Config, error) { return Load(c.Common.Config, c.Common.EnvFile, environ) }
	cfg, err := load()
	if err != nil {
		return fail(2, err)
	}
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Common.LogLevel)) // kong has checked it
	log := Logger(stdout, level)
	LogRedis(log)
	hangup, stop := make(chan os.Signal, 1), make(chan os.Signal, 2)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(stop)

	p, err := c.Start(Options{Config: cfg, Log: log})
	if err != nil {
		return fail(exitCode(err), err)
	}
	for running := true; running; {
		select {
		case <-hangup:
			reload(log, p, load)
		case <-stop:
			running = false
		}
	}
	log.Info("stopping: jobs in flight end first; a second signal hands them back")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := p.Stop(ctx); err != nil {
		log.Error("stopped with failures", "error", err)
		return 1
	}
	return 0
}

// reload has a process take the configuration over as it reads now.
func reload(log *slog.Logger, p Process, load func() (*config.Config, error)) {
	cfg, err := load()
	if err == nil {
		err = p.Reload(cfg)
	}
	if err != nil {
		log.Error("configuration not reloaded: nothing has changed", "error", err)
		return
	}
	log.Info("configuration reloaded")
}

// redisLog passes go-redis's own lines on; it would write them to standard
// error as plain text. What they report shows as warnings of ours, so they are
// for debugging.
type redisLog struct{ log *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, args ...any) {
	l.log.LogAttrs(ctx, slog.LevelDebug, "redis", slog.String("message", fmt.Sprintf(format, args...)))
}

// LogRedis sends go-redis's lines to log. The setting is the whole process's:
// commands call it once, before anything starts.
func LogRedis(log *slog.Logger) { redis.SetLogger(redisLog{log}) }
