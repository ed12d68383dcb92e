// Package background runs a process's loops and swallows nothing: a loop that
// panics or ends with an error is logged, kept, shown by readiness and
// returned when the process stops.
package background

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
)

// Group is a set of named loops. Create it with [New].
type Group struct {
	ctx    context.Context
	cancel context.CancelFunc
	log    *slog.Logger
	wg     sync.WaitGroup

	mu   sync.Mutex // guards errs
	errs []error
}

// New returns a group whose loops end when ctx does or Stop is called.
func New(ctx context.Context, log *slog.Logger) *Group {
	ctx, cancel := context.WithCancel(ctx)
	return &Group{ctx: ctx, cancel: cancel, log: log}
}

// Go runs a loop until its context is done. Returning an error before that, or
// panicking, is a failure of the group.
func (g *Group) Go(name string, loop func(ctx context.Context) error) {
	g.wg.Go(func() {
		err := g.run(loop)
		if err == nil || (g.ctx.Err() != nil && errors.Is(err, context.Canceled)) {
			return
		}
		g.Fail(name, err)
	})
}

func (g *Group) run(loop func(ctx context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return loop(g.ctx)
}

// Fail records a failure that happened outside a loop of the group.
func (g *Group) Fail(name string, err error) {
	g.log.Error("background loop failed", "loop", name, "error", err)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.errs = append(g.errs, fmt.Errorf("%s: %w", name, err))
}

// Guard runs f and records a panic of it as a failure of the group, under the
// given name, instead of taking the process down with every job in flight.
func (g *Group) Guard(name string, f func()) {
	defer func() {
		if p := recover(); p != nil {
			g.Fail(name, fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
	}()
	f()
}

// Err returns what has failed so far.
func (g *Group) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return errors.Join(g.errs...)
}

// Stop ends the loops, waits for them and returns what failed.
func (g *Group) Stop() error {
	g.cancel()
	g.wg.Wait()
	return g.Err()
}
