package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"leeway/broker/client"
	"leeway/broker/flag"
	"leeway/broker/wire"
	"leeway/rehearsal/lab"
)

// Target is a Leeway that can be drilled.
type Target struct {
	Client *client.Client
	// Class is the class to submit to, and the one whose flags are set; empty:
	// the default class, and flags for all.
	Class string
	// Alone: nobody but the drill has jobs there.
	Alone bool
	// Labs are the lab backends that can be reached, by name. WholeRecord: they
	// are all the backends there are, so that every call of a job stands in their
	// records.
	Labs        map[string]Control
	WholeRecord bool
	// Backend is a lab's base URL and a client that reaches it; nil where only the
	// workers know where backends are.
	Backend func(name string) (string, *http.Client)
	// Processes has those of the actions on processes that can be carried out.
	Processes map[Action]func(context.Context) error
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

// actor is how drills sign what they do to flags.
const actor = "leeway drill"

// do carries out an event.
func (t *Target) do(ctx context.Context, e *Event) error {
	switch e.Do {
	case DoFault:
		return t.Labs[e.On].SetFault(ctx, lab.Fault{Name: e.Fault, MS: e.MS, Count: e.Count})
	case DoHeal:
		return t.Labs[e.On].ClearFault(ctx)
	case DoFlag: // which ends by itself, should the drill not live to clear it
		_, err := t.Client.SetFlag(ctx, flag.Name(e.On), &wire.FlagChange{Value: e.Value, Reason: "drill", By: actor, Class: t.Class, ForMS: MaxLengthMS})
		return err
	case DoClearFlag:
		return t.clearFlag(ctx, e.On)
	case DoKillWorker, DoAddWorker, DoPauseStore, DoWakeStore:
	}
	return t.Processes[e.Do](ctx)
}

// clearFlag clears a flag that a drill has set. One that somebody else has set
// meanwhile stays, and is an error.
func (t *Target) clearFlag(ctx context.Context, name string) error {
	f, err := t.flagThatIsSet(ctx, name)
	switch {
	case err != nil || f == nil:
		return err
	case !strings.Contains(f.By, actor):
		return fmt.Errorf("%s was set by %s meanwhile and stays as it is", name, f.By)
	}
	_, err = t.Client.ClearFlag(ctx, flag.Name(name), t.Class, actor, "drill over")
	return err
}

// flagThatIsSet is the value that a flag was given at run time for the class
// itself; nil: none.
func (t *Target) flagThatIsSet(ctx context.Context, name string) (*wire.FlagView, error) {
	flags, err := t.Client.Flags(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(flags, func(f wire.FlagView) bool {
		return string(f.Name) == name && f.Class == t.Class && f.Source == "flag"
	})
	if i < 0 {
		return nil, nil //nolint:nilnil // nothing is set, which is no error
	}
	return &flags[i], nil
}

// cannot says why an event cannot be carried out here; empty: it can.
func (t *Target) cannot(e *Event) string {
	switch e.Do {
	case DoFault, DoHeal:
		if t.Labs[e.On] == nil {
			return fmt.Sprintf("needs the control of %s (--lab-control %s=URL)", e.On, e.On)
		}
	case DoKillWorker, DoAddWorker:
		if t.Processes[e.Do] == nil {
			return "needs " + e.victim() + " of this machine (--worker-pid)"
		}
	case DoPauseStore, DoWakeStore:
		if t.Processes[e.Do] == nil {
			return "needs the Redis of this machine (--redis-pid)"
		}
	case DoFlag, DoClearFlag:
	}
	return ""
}

// victim names the worker that an event kills.
func (e *Event) victim() string {
	if e.On != "" {
		return "the " + e.On + " pool's own worker"
	}
	return "a worker"
}

// Cannots lists what of a plan cannot be done against a target, and why.
func (t *Target) Cannots(p *Plan) (out []string) {
	seen := map[string]bool{}
	for i := range p.Events {
		if why := t.cannot(&p.Events[i]); why != "" && !seen[why] {
			seen[why] = true
			out = append(out, fmt.Sprintf("%s: %s", p.Events[i].String(), why))
		}
	}
	return out
}

// ErrCannot is returned for a plan that a target cannot play.
var ErrCannot = errors.New("this drill cannot be run here")

// refuse is an error that says why a plan cannot be played.
func refuse(p *Plan, why ...string) error {
	return fmt.Errorf("%s: %w: %s", p.Name, ErrCannot, strings.Join(why, "; "))
}
