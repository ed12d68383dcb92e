//go:build server

package deploy_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"leeway/broker/config"
	"leeway/dashboards"
	"leeway/slackgate"
)

// project is docker-compose.yml as compose loads it.
type project struct {
	Services map[string]service
	Configs  map[string]struct{ Content string }
	Volumes  map[string]any
}

type service struct {
	Image, User     string
	Command         []string
	Environment     map[string]string
	DependsOn       map[string]any `json:"depends_on"`
	StopGracePeriod string         `json:"stop_grace_period"`
	Profiles        []string
	Configs         []struct{ Source, Target string }
	Volumes         []struct {
		Type, Source, Target string
		ReadOnly             bool `json:"read_only"`
	}
	Ports []struct {
		HostIP    string `json:"host_ip"`
		Target    int
		Published string
	}
	Healthcheck *struct{ Test []string }
}

// load reads the file with compose's own library, schema check included.
func load(t *testing.T) *project {
	t.Helper()
	file, err := filepath.Abs("../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", ".", file)
	cmd.Dir = "../tools/compose"
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	raw, err := cmd.Output()
	if err != nil {
		t.Fatalf("compose refuses docker-compose.yml: %v\n%s", err, stderr.String())
	}
	var p project
	if err := json.Unmarshal(raw, &p); err != nil {
		t.Fatal(err)
	}
	return &p
}

func TestCompose(t *testing.T) {
	p := load(t)
	t.Run("services", p.services)
	t.Run("mounts", p.mounts)
	t.Run("environment", p.environment)
	t.Run("ports", p.ports)
	t.Run("scrape", p.scrape)
	t.Run("grafana", p.grafana)
}

// services checks who is there and how it is run.
func (p *project) services(t *testing.T) {
	for _, name := range []string{"redis", "api", "worker-paid", "worker-free", "prometheus", "grafana"} {
		if s, ok := p.Services[name]; !ok || len(s.Profiles) > 0 {
			t.Errorf("service %s: there %v, profiles %v", name, ok, s.Profiles)
		}
	}
	for name, s := range p.Services {
		if strings.HasPrefix(name, "lab-") && !slices.Equal(s.Profiles, []string{"lab"}) {
			t.Errorf("%s is in profiles %v", name, s.Profiles)
		}
		if _, tag, ok := strings.Cut(s.Image, ":"); s.Image != "leeway" && (!ok || tag == "latest") {
			t.Errorf("%s runs %s: name a version", name, s.Image)
		}
	}
	redis := strings.Join(p.Services["redis"].Command, " ")
	for _, want := range []string{"--appendonly yes", "--maxmemory-policy noeviction"} {
		if !strings.Contains(redis, want) {
			t.Errorf("redis is run without %s", want)
		}
	}
	for _, name := range []string{"worker-paid", "worker-free"} {
		d, err := time.ParseDuration(p.Services[name].StopGracePeriod)
		if err != nil || d.Milliseconds() <= config.Default().Worker.ShutdownGraceMS {
			t.Errorf("%s is killed after %v (%v); a worker stops within %d ms", name, d, err, config.Default().Worker.ShutdownGraceMS)
		}
	}
}

// mounts checks that what is mounted is there, read-only, and where it is read.
func (p *project) mounts(t *testing.T) {
	for name, s := range p.Services {
		for _, v := range s.Volumes {
			switch v.Type {
			case "bind":
				if _, err := os.Stat(v.Source); err != nil {
					t.Errorf("%s mounts what is not there: %v", name, err)
				}
				if !v.ReadOnly {
					t.Errorf("%s may write to %s", name, v.Source)
				}
			case "volume":
				if _, ok := p.Volumes[v.Source]; !ok {
					t.Errorf("%s: volume %s is not declared", name, v.Source)
				}
			}
		}
		for _, c := range s.Configs {
			if p.Configs[c.Source].Content == "" {
				t.Errorf("%s: config %s is empty", name, c.Source)
			}
		}
	}
	prom := p.Services["prometheus"]
	for _, c := range prom.Command {
		if path, ok := strings.CutPrefix(c, "--config.file="); ok && prom.mounted(path) == "" {
			t.Errorf("prometheus reads %s, which is not mounted", path)
		}
	}
	var cfg struct {
		RuleFiles []string `yaml:"rule_files"`
	}
	unmarshal(t, prom.mounted("/etc/prometheus/prometheus.yaml"), &cfg)
	for _, f := range cfg.RuleFiles {
		if prom.mounted("/etc/prometheus/"+f) == "" {
			t.Errorf("prometheus reads rules %s, which are not mounted", f)
		}
	}
}

// mounted is the file on this machine that a service sees at a path.
func (s *service) mounted(path string) string {
	for _, v := range s.Volumes {
		if rest, ok := strings.CutPrefix(path, v.Target); ok && v.Type == "bind" && (rest == "" || rest[0] == '/') {
			return filepath.Join(v.Source, rest)
		}
	}
	return ""
}

func unmarshal(t *testing.T, file string, v any) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(raw, v); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// environment checks that each variable is one that the code reads, and that
// the processes would start on what they are given.
func (p *project) environment(t *testing.T) {
	known := map[string]bool{}
	for _, file := range []string{"../broker/config/config.go", "../broker/config/environment.go", "../broker/config/class.go", "../cmd/app/command.go"} {
		for _, m := range regexp.MustCompile("env:\"([A-Z0-9_]+)\"").FindAllStringSubmatch(read(t, file), -1) {
			known[m[1]] = true
		}
	}
	for _, name := range []string{"api", "worker-paid", "worker-free"} {
		s := p.Services[name]
		environ := image(t)
		for k, v := range s.Environment {
			if !known[k] {
				t.Errorf("%s is given %s, which nothing reads", name, k)
			}
			environ = append(environ, k+"="+v)
		}
		if len(s.Configs) != 1 || s.Environment["LEEWAY_CONFIG"] != s.Configs[0].Target {
			t.Fatalf("%s reads %s; mounted: %+v", name, s.Environment["LEEWAY_CONFIG"], s.Configs)
		}
		file := filepath.Join(t.TempDir(), "leeway.yaml")
		if err := os.WriteFile(file, []byte(p.Configs[s.Configs[0].Source].Content), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(file, environ)
		if err != nil {
			t.Errorf("%s would not start: %v", name, err)
			continue
		}
		if u, err := url.Parse(cfg.Redis.URL); err != nil || u.Hostname() != "redis" || u.Port() != "6379" {
			t.Errorf("%s looks for Redis at %s (%v)", name, cfg.Redis.URL, err)
		}
		for _, path := range slackgate.Paths {
			if slots := cfg.Slots(path); name != "api" && (slots > 0) != (name == "worker-"+path.String()) {
				t.Errorf("%s offers %d slots to %s", name, slots, path)
			}
			for _, b := range cfg.Pool(path).Backends {
				u, err := url.Parse(b.URL)
				if err != nil {
					t.Fatal(err)
				}
				lab, ok := p.Services[u.Hostname()]
				if !ok || !slices.Contains(lab.Command, ":"+u.Port()) {
					t.Errorf("backend %s is at %s, where nothing listens", b.Name, b.URL)
				}
			}
		}
	}
}

// image is the environment that the image sets.
func image(t *testing.T) []string {
	t.Helper()
	return regexp.MustCompile(`LEEWAY_[A-Z_]+=:\d+`).FindAllString(read(t, "../Dockerfile"), -1)
}

// listens is the port on which a service's process listens for a purpose: the
// image says so in its environment.
func listens(t *testing.T, variable string) string {
	t.Helper()
	m := regexp.MustCompile(variable + `=:(\d+)`).FindStringSubmatch(read(t, "../Dockerfile"))
	if m == nil {
		t.Fatalf("the image does not say %s", variable)
	}
	return m[1]
}

// control is the port of a lab's control, as its command has it.
func (p *project) control(t *testing.T, lab string) string {
	command := p.Services[lab].Command
	i := slices.Index(command, "--control")
	if i < 0 || i+1 == len(command) {
		t.Fatalf("%s has no control: %v", lab, command)
	}
	return strings.TrimPrefix(command[i+1], ":")
}

// ports checks that what is published is what the code listens on, on loopback
// alone, and nothing twice.
func (p *project) ports(t *testing.T) {
	api, apiMetrics, workerMetrics := listens(t, "LEEWAY_ADDR"), listens(t, "LEEWAY_METRICS_ADDR"), listens(t, "LEEWAY_WORKER_METRICS_ADDR")
	for variable, def := range map[string]string{api: config.Default().Listen, apiMetrics: config.Default().MetricsListen, workerMetrics: config.Default().WorkerMetricsListen} {
		if _, port, err := net.SplitHostPort(def); err != nil || port != variable {
			t.Errorf("the image listens on %s, the code by default on %s", variable, def)
		}
	}
	want := map[string][]string{
		"api": {api, apiMetrics}, "worker-paid": {workerMetrics}, "worker-free": {workerMetrics},
		"prometheus": {"9090"}, "grafana": {"3000"},
		// where a drill switches faults on
		"lab-paid": {p.control(t, "lab-paid")}, "lab-free": {p.control(t, "lab-free")},
	}
	published := map[string]string{}
	for name, s := range p.Services {
		var got []string
		for _, port := range s.Ports {
			got = append(got, fmt.Sprint(port.Target))
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s publishes %s to the world", name, port.Published)
			}
			if other := published[port.Published]; other != "" {
				t.Errorf("%s and %s both publish %s", name, other, port.Published)
			}
			published[port.Published] = name
		}
		if !slices.Equal(got, want[name]) {
			t.Errorf("%s publishes %v, want %v", name, got, want[name])
		}
		if s.Healthcheck == nil {
			continue
		}
		for _, arg := range s.Healthcheck.Test {
			u, err := url.Parse(arg)
			if err != nil || u.Scheme != "http" {
				continue
			}
			ok := slices.Contains(want[name], u.Port()) || slices.Contains(s.Command, ":"+u.Port())
			if !ok {
				t.Errorf("%s is checked at %s", name, arg)
			}
		}
	}
	// The ports that the runbooks' commands use.
	for port, name := range map[string]string{"8080": "api", "9090": "api", "9091": "worker-paid", "9099": "prometheus"} {
		if published[port] != name {
			t.Errorf("the runbooks look for %s at %s, where %q is", name, port, published[port])
		}
	}
	u, err := url.Parse(dashboards.RunbooksURL)
	if err != nil || published[u.Port()] != "api" {
		t.Errorf("alerts link to %s, where %q is (%v)", dashboards.RunbooksURL, published[u.Port()], err)
	}
}

// scrape checks that Prometheus scrapes each process once, where it listens.
func (p *project) scrape(t *testing.T) {
	prom := p.Services["prometheus"]
	var cfg struct {
		Global struct {
			ExternalLabels map[string]string `yaml:"external_labels"`
		} `yaml:"global"`
		ScrapeConfigs []struct {
			JobName       string `yaml:"job_name"`
			StaticConfigs []struct {
				Targets []string `yaml:"targets"`
			} `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	unmarshal(t, prom.mounted("/etc/prometheus/prometheus.yaml"), &cfg)
	if got := cfg.Global.ExternalLabels["runbooks"]; got != dashboards.RunbooksURL {
		t.Errorf("Prometheus links to %s, Grafana to %s", got, dashboards.RunbooksURL)
	}
	rules := read(t, prom.mounted("/etc/prometheus/rules.yaml"))
	scraped := map[string]bool{}
	for _, job := range cfg.ScrapeConfigs {
		if !strings.Contains(rules, job.JobName) {
			t.Errorf("no rule knows job %s", job.JobName)
		}
		for _, sc := range job.StaticConfigs {
			for _, target := range sc.Targets {
				host, port, err := net.SplitHostPort(target)
				if err != nil {
					t.Fatal(err)
				}
				scraped[host] = true
				want := listens(t, "LEEWAY_METRICS_ADDR")
				if strings.HasPrefix(host, "worker") {
					want = listens(t, "LEEWAY_WORKER_METRICS_ADDR")
				}
				if _, ok := p.Services[host]; !ok || port != want {
					t.Errorf("Prometheus scrapes %s", target)
				}
			}
		}
	}
	for name := range p.Services {
		if (name == "api" || strings.HasPrefix(name, "worker")) && !scraped[name] {
			t.Errorf("Prometheus does not scrape %s", name)
		}
	}
}

// grafana checks that what it provisions is mounted, and says what it must.
func (p *project) grafana(t *testing.T) {
	g := p.Services["grafana"]
	const dir = "/etc/grafana/provisioning/"
	var sources struct {
		Datasources []struct{ UID, URL, Type string } `yaml:"datasources"`
	}
	unmarshal(t, g.mounted(dir+"datasources/prometheus.yaml"), &sources)
	alerts := read(t, g.mounted(dir+"alerting/alerts.yaml"))
	if len(sources.Datasources) != 1 || sources.Datasources[0].URL != "http://prometheus:9090" ||
		!strings.Contains(alerts, "datasourceUid: "+sources.Datasources[0].UID+"\n") {
		t.Errorf("datasources: %+v", sources)
	}
	var boards struct {
		Providers []struct {
			Options struct {
				Path string `yaml:"path"`
			} `yaml:"options"`
		} `yaml:"providers"`
	}
	unmarshal(t, g.mounted(dir+"dashboards/leeway.yaml"), &boards)
	if len(boards.Providers) != 1 {
		t.Fatalf("providers: %+v", boards)
	}
	found, err := filepath.Glob(filepath.Join(g.mounted(boards.Providers[0].Options.Path), "*.json"))
	if err != nil || len(found) != 3 {
		t.Errorf("dashboards mounted: %v %v", found, err)
	}
	routing := read(t, g.mounted(dir+"alerting/routing.yaml"))
	for _, m := range regexp.MustCompile(`\$([A-Z_]+)`).FindAllStringSubmatch(routing, -1) {
		if g.Environment[m[1]] == "" {
			t.Errorf("routing reads %s, which Grafana is not given", m[1])
		}
	}
	if !regexp.MustCompile(`\[severity, "=", page\]`).MatchString(routing) || strings.Count(routing, "receiver: leeway-page") != 1 {
		t.Error("not the page alone goes to leeway-page")
	}
}
