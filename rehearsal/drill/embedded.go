package drill

import (
	"context"
	"fmt"
	"net/http"

	"leeway/broker/client"
	"leeway/cmd/app"
	"leeway/rehearsal/lab"
	"leeway/slackgate"
)

// Embedded is a Leeway in this process, made for one plan.
type Embedded struct {
	stage *app.Stage
	labs  map[string]Control
}

// StartEmbedded starts a Leeway as the plan declares it. InMemory keeps all
// connections inside the process (see [app.StageOptions]). Stop must be called.
func StartEmbedded(p *Plan, inMemory bool) (*Embedded, error) {
	return startEmbedded(p, inMemory, 0)
}

func startEmbedded(p *Plan, inMemory bool, pollMS int64) (*Embedded, error) {
	cfg := p.config()
	if pollMS > 0 {
		cfg.Worker.PollMS = pollMS
	}
	o := app.StageOptions{Config: cfg, InMemory: inMemory}
	for _, path := range slackgate.Paths {
		pool := p.Pool(path)
		if pool.Slots == 0 {
			continue
		}
		for _, l := range pool.Labs {
			o.Labs = append(o.Labs, app.StageLab{
				Name: l.Name, Path: path, Profile: l.FirstByte, Tail: l.Tail, Slots: l.Slots, P95MS: l.P95MS,
			})
		}
	}
	stage, err := app.StartStage(o)
	if err != nil {
		return nil, err
	}
	e := &Embedded{stage: stage, labs: map[string]Control{}}
	for _, l := range o.Labs {
		e.labs[l.Name] = inside{stage.Lab(l.Name)}
	}
	return e, nil
}

// Alone implements [Target].
func (e *Embedded) Alone() bool { return true }

// Client implements [Target].
func (e *Embedded) Client() *client.Client { return e.stage.Client() }

// Class implements [Target].
func (e *Embedded) Class() string { return "" }

// Cannot implements [Target]: everything can be done here.
func (e *Embedded) Cannot(*Event) string { return "" }

// Labs implements [Target].
func (e *Embedded) Labs() map[string]Control { return e.labs }

// WholeRecord implements [Target].
func (e *Embedded) WholeRecord() bool { return true }

// Backend implements [Target].
func (e *Embedded) Backend(name string) (string, *http.Client, bool) {
	return e.stage.LabURL(name), e.stage.HTTP(), e.stage.Lab(name) != nil
}

// Do implements [Target].
func (e *Embedded) Do(ctx context.Context, ev *Event) error {
	switch ev.Do {
	case DoFault, DoHeal:
		return doFault(ctx, e.labs, ev)
	case DoFlag:
		return setFlag(ctx, e.Client(), "", ev)
	case DoClearFlag:
		return clearFlag(ctx, e.Client(), "", ev)
	case DoKillWorker:
		return e.stage.LoseWorker()
	case DoAddWorker:
		return e.stage.AnotherWorker()
	case DoPauseStore:
		e.stage.PauseStore()
	case DoWakeStore:
		e.stage.ResumeStore()
	}
	return nil
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
