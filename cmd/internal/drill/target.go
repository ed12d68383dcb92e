package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/broker/flag"
	"leeway/cmd/internal/app"
	"leeway/slackgate"
	"leeway/workers/lab"
)

// Target is a Leeway that can be drilled.
type Target interface {
	// Name says what it is.
	Name() string
	Client() *client.Client
	// Class is the class to submit to; empty: the default one.
	Class() string
	// Cannot says why an event cannot be carried out here; empty: it can.
	Cannot(e *Event) string
	// Do carries out an event.
	Do(ctx context.Context, e *Event) error
	// Labs are the lab backends that can be reached, by name.
	Labs() map[string]Control
	// Backend is a lab's base URL and a client that reaches it; false if this
	// target does not know.
	Backend(name string) (string, *http.Client, bool)
}

// Control is a lab backend's control endpoint.
type Control interface {
	SetFault(ctx context.Context, f lab.Fault) error
	ClearFault(ctx context.Context) error
	Fault(ctx context.Context) (lab.Fault, error)
	State(ctx context.Context) (lab.State, error)
	// Attempts are those after a sequence number, oldest first.
	Attempts(ctx context.Context, since int64) ([]lab.Attempt, error)
}

// setFlag and clearFlag are how every target changes flags.
func setFlag(ctx context.Context, c *client.Client, e *Event) error {
	_, err := c.SetFlag(ctx, flag.Name(e.On), &client.FlagChange{Value: e.Value, Reason: "drill", By: "leeway drill", ForMS: MaxLengthMS})
	return err
}

func clearFlag(ctx context.Context, c *client.Client, e *Event) error {
	_, err := c.ClearFlag(ctx, flag.Name(e.On), "", "leeway drill", "drill over")
	return err
}

// doFault carries out what concerns a lab backend.
func doFault(ctx context.Context, labs map[string]Control, e *Event) error {
	l := labs[e.On]
	if l == nil {
		return fmt.Errorf("no lab backend is called %s", e.On)
	}
	if e.Do == DoHeal {
		return l.ClearFault(ctx)
	}
	return l.SetFault(ctx, lab.Fault{Name: e.Fault, MS: e.MS, Count: e.Count})
}

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
	cfg := config.Default()
	cfg.Gate.Policy = p.Policy
	cfg.Redis.TimeoutMS = p.RedisTimeoutMS
	cfg.Lab.RecheckOff = p.RecheckOff
	if pollMS > 0 {
		cfg.Worker.PollMS = pollMS
	}
	reserve := p.Class.ReserveMS
	cfg.Classes = config.Classes{cfg.DefaultClass: {DeadlineMS: p.Class.DeadlineMS, ReserveMS: &reserve, Prefer: p.Class.Prefer}}
	o := app.StageOptions{Config: cfg, InMemory: inMemory}
	for _, path := range slackgate.Paths {
		pool := p.Pool(path)
		*cfg.Pool(path) = config.Pool{Limit: pool.Slots, FirstByteP95MS: max(pool.P95MS, 1), HoldP95MS: pool.HoldP95MS, FirstByteCapMS: pool.CapMS}
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

// Name implements [Target].
func (e *Embedded) Name() string { return embeddedName }

// Client implements [Target].
func (e *Embedded) Client() *client.Client { return e.stage.Client() }

// Class implements [Target].
func (e *Embedded) Class() string { return "" }

// Cannot implements [Target]: everything can be done here.
func (e *Embedded) Cannot(*Event) string { return "" }

// Labs implements [Target].
func (e *Embedded) Labs() map[string]Control { return e.labs }

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
		return setFlag(ctx, e.Client(), ev)
	case DoClearFlag:
		return clearFlag(ctx, e.Client(), ev)
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

// Cannots lists what of a plan cannot be done against a target, and why.
func Cannots(p *Plan, t Target) (out []string) {
	seen := map[string]bool{}
	for i := range p.Events {
		if why := t.Cannot(&p.Events[i]); why != "" && !seen[why] {
			seen[why] = true
			out = append(out, fmt.Sprintf("%s: %s", p.Events[i].String(), why))
		}
	}
	return out
}

// ErrCannot is returned for a plan that a target cannot play.
var ErrCannot = errors.New("this drill cannot be run here")

// refuse is an error that says why a plan cannot be played.
func refuse(p *Plan, why []string) error {
	return fmt.Errorf("%s: %w: %s", p.Name, ErrCannot, strings.Join(why, "; "))
}
