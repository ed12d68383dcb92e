//go:build server

package deploy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"leeway/rehearsal/proctest"
	"leeway/rehearsal/redistest"
)

// host runs the services of docker-compose.yml on this machine, one process
// each: what a service calls name:port, and the port it listens on, become
// loopback ports of their own. All else is as the file and the image say.
type host struct {
	t     *testing.T
	bin   string
	ports map[string]string // "service:port" -> 127.0.0.1:port
}

// at is where a service's port is on this machine.
func (h *host) at(service, port string) string {
	key := service + ":" + port
	if h.ports[key] == "" {
		h.ports[key] = fmt.Sprintf("127.0.0.1:%d", proctest.FreePort(h.t))
	}
	return h.ports[key]
}

var (
	elsewhere = regexp.MustCompile(`\b(redis|lab-paid|lab-free):(\d+)`)
	own       = regexp.MustCompile(`^(?:http://127\.0\.0\.1)?:(\d+)`)
)

// here is a text of a service with its addresses replaced.
func (h *host) here(service, s string) string {
	s = elsewhere.ReplaceAllStringFunc(s, func(m string) string {
		name, port, _ := strings.Cut(m, ":")
		return h.at(name, port)
	})
	return own.ReplaceAllStringFunc(s, func(m string) string {
		prefix, port, _ := strings.Cut(strings.Replace(m, "http://127.0.0.1", "", 1), ":")
		if strings.HasPrefix(m, "http") {
			prefix = "http://"
		}
		return prefix + h.at(service, port)
	})
}

// command is a service's command line as a process of this machine.
func (h *host) command(service string, argv []string) *exec.Cmd {
	args := make([]string, 0, len(argv))
	for _, a := range argv[1:] {
		args = append(args, h.here(service, a))
	}
	return proctest.Command(h.t, filepath.Join(h.bin, argv[0]), args...)
}

// start runs a service with the image's environment and its own.
func (h *host) start(p *project, service string) {
	s := p.Services[service]
	cmd := h.command(service, s.Command)
	for _, variable := range image(h.t) {
		name, addr, _ := strings.Cut(variable, "=")
		cmd.Env = append(cmd.Env, name+"="+h.here(service, addr))
	}
	for k, v := range s.Environment {
		if k == "LEEWAY_CONFIG" {
			file := filepath.Join(h.t.TempDir(), "leeway.yaml")
			if err := os.WriteFile(file, []byte(h.here(service, p.Configs[s.Configs[0].Source].Content)), 0o600); err != nil {
				h.t.Fatal(err)
			}
			v = file
		}
		cmd.Env = append(cmd.Env, k+"="+h.here(service, v))
	}
	h.t.Cleanup(proctest.Start(h.t, cmd).Stop)
}

// healthy waits for the service's own health check, or the image's.
func (h *host) healthy(p *project, service string) {
	h.t.Helper()
	var test []string
	if c := p.Services[service].Healthcheck; c != nil && len(c.Test) > 1 {
		test = c.Test[1:]
	} else {
		m := regexp.MustCompile(`(?s)HEALTHCHECK.*?CMD (\[.*?\])`).FindStringSubmatch(read(h.t, "../Dockerfile"))
		if err := json.Unmarshal([]byte(m[1]), &test); err != nil {
			h.t.Fatal(err)
		}
	}
	proctest.Eventually(h.t, time.Minute, service+" is healthy", func() error {
		out, err := h.command(service, test).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// TestProcesses runs the services' own commands, environment and configuration
// without containers, and a job through them.
func TestProcesses(t *testing.T) {
	p := load(t)
	bin, err := proctest.Build("bin/e2e/shipped", nil, "api", "worker", "leeway")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, bin: bin, ports: map[string]string{}}
	h.ports["redis:6379"] = redistest.Start(t, p.Services["redis"].Command[1:]...).Addr()
	services := []string{"lab-paid", "lab-free", "api", "worker-paid", "worker-free"}
	for _, s := range services {
		h.start(p, s)
	}
	for _, s := range services {
		h.healthy(p, s)
	}
	api := "http://" + h.at("api", "8080")
	var job struct {
		JobID string `json:"job_id"`
	}
	proctest.Eventually(t, time.Minute, "a job is admitted", func() error {
		resp, err := http.Post(api+"/v1/jobs", "application/json", strings.NewReader(`{"text": "A refusal costs milliseconds. A late answer costs a generation."}`))
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		raw, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusAccepted {
			return fmt.Errorf("%d, %w: %s", resp.StatusCode, err, raw)
		}
		return json.Unmarshal(raw, &job)
	})
	resp, err := http.Get(api + "/v1/jobs/" + job.JobID + "?wait=20s")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Contains(raw, []byte(`"outcome":"usable"`)) {
		t.Errorf("%v, %s", err, raw)
	}
	// The labs' controls are where docs/drills.md says.
	args := []string{"drill", "list", "--api", api}
	for _, lab := range []string{"lab-paid", "lab-free"} {
		port := map[string]string{"lab-paid": "8101", "lab-free": "8102"}[lab]
		args = append(args, "--lab-control", lab+"=http://"+h.at(lab, port)+"/control")
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(h.bin, "leeway"), args...).CombinedOutput()
	if want := "free-slow        the free backend's first byte takes six seconds\n                   can be played there"; err != nil || !bytes.Contains(out, []byte(want)) {
		t.Errorf("drill list: %v\n%s", err, out)
	}
}
