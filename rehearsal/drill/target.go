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
type Target interface {
	// Alone reports whether nobody but the drill has jobs there.
	Alone() bool
	Client() *client.Client
	// Class is the class to submit to; empty: the default one.
	Class() string
	// Cannot says why an event cannot be carried out here; empty: it can.
	Cannot(e *Event) string
	// Do carries out an event.
	Do(ctx context.Context, e *Event) error
	// Labs are the lab backends that can be reached, by name. WholeRecord reports
	// whether they are all the backends there are, so that every call of a job
	// stands in their records.
	Labs() map[string]Control
	WholeRecord() bool
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

// actor is how drills sign what they do to flags.
const actor = "leeway drill"

// setFlag sets a flag for a class; empty: for all. It ends by itself should the
// drill not live to clear it.
func setFlag(ctx context.Context, c *client.Client, class string, e *Event) error {
	_, err := c.SetFlag(ctx, flag.Name(e.On), &wire.FlagChange{Value: e.Value, Reason: "drill", By: actor, Class: class, ForMS: MaxLengthMS})
	return err
}

// clearFlag clears a flag that a drill has set. One that somebody else has set
// meanwhile stays, and is an error.
func clearFlag(ctx context.Context, c *client.Client, class string, e *Event) error {
	f, err := flagThatIsSet(ctx, c, e.On, class)
	switch {
	case err != nil || f == nil:
		return err
	case !strings.Contains(f.By, actor):
		return fmt.Errorf("%s was set by %s meanwhile and stays as it is", e.On, f.By)
	}
	_, err = c.ClearFlag(ctx, flag.Name(e.On), class, actor, "drill over")
	return err
}

// flagThatIsSet is the value that a flag was given at run time for a class
// itself; nil: none.
func flagThatIsSet(ctx context.Context, c *client.Client, name, class string) (*wire.FlagView, error) {
	flags, err := c.Flags(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(flags, func(f wire.FlagView) bool {
		return string(f.Name) == name && f.Class == class && f.Source == "flag"
	})
	if i < 0 {
		return nil, nil //nolint:nilnil // nothing is set, which is no error
	}
	return &flags[i], nil
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
