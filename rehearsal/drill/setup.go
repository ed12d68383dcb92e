package drill

import (
	_ "embed"
	"io"
	"text/template"

	"leeway/broker/config"
	"leeway/slackgate"
)

// config is the configuration that a plan declares, without its backends.
func (p *Plan) config() *config.Config {
	cfg := config.Default()
	cfg.Gate.Policy = p.Policy
	cfg.Redis.TimeoutMS = p.RedisTimeoutMS
	cfg.Lab.RecheckOff = p.RecheckOff
	reserve := p.Class.ReserveMS
	cfg.Classes = config.Classes{cfg.DefaultClass: {DeadlineMS: p.Class.DeadlineMS, ReserveMS: &reserve, Prefer: p.Class.Prefer}}
	for _, path := range slackgate.Paths {
		pool := p.Pool(path)
		if pool.Slots == 0 {
			cfg.Pool(path).Limit = 0
			continue
		}
		*cfg.Pool(path) = config.Pool{Limit: pool.Slots, FirstByteP95MS: pool.P95MS, HoldP95MS: pool.HoldP95MS, FirstByteCapMS: pool.CapMS}
	}
	return cfg
}

// Ports of a setup's labs on loopback: the first backend's, and the first
// control's.
const (
	firstLabPort     = 8001
	firstControlPort = 8101
)

//go:embed setup.tmpl
var setupText string

var setup = template.Must(template.New("setup").Parse(setupText))

// setupLab is one lab of a setup.
type setupLab struct {
	Lab

	Path              slackgate.Path
	Port, ControlPort int
}

// WriteSetup writes a configuration file for a deployment as the plan declares
// it, with the commands that start it on this machine.
func (p *Plan) WriteSetup(w io.Writer) error {
	var labs []setupLab
	for _, path := range slackgate.Paths {
		if pool := p.Pool(path); pool.Slots > 0 {
			for _, l := range pool.Labs {
				labs = append(labs, setupLab{Lab: l, Path: path, Port: firstLabPort + len(labs), ControlPort: firstControlPort + len(labs)})
			}
		}
	}
	return setup.Execute(w, struct {
		*Plan

		Paths []slackgate.Path
		Labs  []setupLab
	}{p, slackgate.Paths[:], labs})
}
