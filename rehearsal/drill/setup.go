package drill

import (
	"fmt"
	"io"
	"strings"
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

// setupLab is one lab of a setup.
type setupLab struct {
	Lab

	Port, Control int
}

// Flags are those of `leeway lab`.
func (l setupLab) Flags() string {
	s := fmt.Sprintf("--addr 127.0.0.1:%d --control 127.0.0.1:%d --model %s --profile %s --tail %s", l.Port, l.Control, l.Name, l.FirstByte, l.Tail)
	if l.Slots > 0 {
		s += fmt.Sprintf(" --slots %d", l.Slots)
	}
	return s
}

var setupText = template.Must(template.New("setup").Parse(`# What the drill {{.Plan.Name}} declares, for processes of its own on this machine:
#
{{- range .All}}
#   leeway lab {{.Flags}}
{{- end}}
#   redis-server --appendonly yes --maxmemory-policy noeviction
#   api --config THIS_FILE
#   worker --config THIS_FILE
#
# and then
#
#   leeway drill {{.Plan.Name}} --url http://127.0.0.1:8080{{range .All}} --lab-control {{.Name}}=http://127.0.0.1:{{.Control}}/control{{end}}{{.Pids}}
redis: {url: "redis://127.0.0.1:6379/0", timeout_ms: {{.Plan.RedisTimeoutMS}}}
gate: {policy: {{.Plan.Policy}}}
{{- if .Plan.RecheckOff}}
lab: {recheck_off: true}
{{- end}}
pools:
{{- range .Pools}}
  {{.Path}}:
    limit: {{.Slots}}
{{- if .Slots}}
    first_byte_p95_ms: {{.P95MS}}
    hold_p95_ms: {{.HoldP95MS}}
{{- if .CapMS}}
    first_byte_cap_ms: {{.CapMS}}
{{- end}}
    backends:
{{- range .Labs}}
      - name: {{.Name}}
        url: http://127.0.0.1:{{.Port}}/v1
        model: {{.Name}}
        first_byte_p95_ms: {{.P95MS}}
{{- if .Paid}}
        price: {currency: USD, version: lab, input_micro_per_mtok: 150000, output_micro_per_mtok: 600000}
{{- end}}
{{- end}}
{{- end}}
{{- end}}
classes:
  summary: {deadline_ms: {{.Plan.Class.DeadlineMS}}, reserve_ms: {{.Plan.Class.ReserveMS}}, prefer: {{.Plan.Class.Prefer}}}
`))

// WriteSetup writes a configuration file for a deployment as the plan declares
// it, with the commands that start it on this machine.
func (p *Plan) WriteSetup(w io.Writer) error {
	type lab struct {
		setupLab

		Paid bool
	}
	type pool struct {
		*Pool

		Path string
		Labs []lab
	}
	var pools []pool
	var all []setupLab
	for _, path := range slackgate.Paths {
		of := pool{Pool: p.Pool(path), Path: path.String()}
		for _, l := range of.Pool.Labs {
			if of.Slots == 0 {
				continue
			}
			s := setupLab{Lab: l, Port: firstLabPort + len(all), Control: firstControlPort + len(all)}
			all = append(all, s)
			of.Labs = append(of.Labs, lab{s, path == slackgate.Paid})
		}
		pools = append(pools, of)
	}
	var pids strings.Builder
	for i := range p.Events {
		switch p.Events[i].Do {
		case DoKillWorker:
			pids.WriteString(" --worker-pid PID")
		case DoPauseStore:
			pids.WriteString(" --redis-pid PID")
		case DoFault, DoHeal, DoFlag, DoClearFlag, DoAddWorker, DoWakeStore:
		}
	}
	return setupText.Execute(w, struct {
		Plan  *Plan
		Pools []pool
		All   []setupLab
		Pids  string
	}{p, pools, all, pids.String()})
}
