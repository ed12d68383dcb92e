package drill

import (
	"context"
	"fmt"
	"net/http"

	"leeway/rehearsal/lab"
	"leeway/rehearsal/stage"
	"leeway/slackgate"
)

// Embedded is a Leeway in this process, made for one plan.
type Embedded struct {
	Target

	stage *stage.Stage
}

// StartEmbedded starts a Leeway as the plan declares it. InMemory keeps all
// connections inside the process (see [stage.Options]). Stop must be called.
func StartEmbedded(p *Plan, inMemory bool) (*Embedded, error) {
	return startEmbedded(p, inMemory, 0)
}

func startEmbedded(p *Plan, inMemory bool, pollMS int64) (*Embedded, error) {
	cfg := p.config()
	cfg.Listen, cfg.MetricsListen, cfg.WorkerMetricsListen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	if pollMS > 0 {
		cfg.Worker.PollMS = pollMS
	}
	o := stage.Options{Config: cfg, InMemory: inMemory, Apart: p.Apart()}
	for _, path := range slackgate.Paths {
		pool := p.Pool(path)
		if pool.Slots == 0 {
			continue
		}
		for _, l := range pool.Labs {
			o.Labs = append(o.Labs, stage.Lab{
				Name: l.Name, Path: path, Profile: l.FirstByte, Tail: l.Tail, Slots: l.Slots, P95MS: l.P95MS,
			})
		}
	}
	s, err := stage.Start(o)
	if err != nil {
		return nil, err
	}
	e := &Embedded{stage: s, Target: Target{
		Client: s.Client(), Alone: true, Labs: map[string]Control{}, WholeRecord: true,
		Backend: func(name string) (string, *http.Client) {
			if l := s.Labs[name]; l != nil {
				return l.URL, s.HTTP
			}
			return "", nil
		},
		Processes: map[Action]func(context.Context) error{
			DoKillWorker: func(context.Context) error { return s.LoseWorker() },
			DoAddWorker:  func(context.Context) error { return s.AnotherWorker() },
			DoPauseStore: func(context.Context) error { s.PauseStore(); return nil },
			DoWakeStore:  func(context.Context) error { s.ResumeStore(); return nil },
		},
	}}
	for name, l := range s.Labs {
		e.Labs[name] = inside{l.Server}
	}
	return e, nil
}

// Stop stops it and returns what had failed in the background.
func (e *Embedded) Stop(ctx context.Context) error { return e.stage.Stop(ctx) }

// inside is the control of a lab in this process.
type inside struct{ *lab.Server }

func (l inside) SetFault(_ context.Context, f lab.Fault) error { return l.Server.SetFault(f) }

func (l inside) ClearFault(context.Context) error {
	l.Server.ClearFault()
	return nil
}

func (l inside) Fault(context.Context) (lab.Fault, error) { return l.Server.Fault(), nil }
func (l inside) State(context.Context) (lab.State, error) { return l.Server.State(), nil }

func (l inside) Attempts(_ context.Context, since int64) ([]lab.Attempt, error) {
	a, forgotten := l.Server.Attempts(since)
	if forgotten > 0 {
		return a, fmt.Errorf("%d attempts are forgotten", forgotten)
	}
	return a, nil
}
