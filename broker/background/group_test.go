package background

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBroken = errors.New("broken")

func TestGroup(t *testing.T) {
	untilDone := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for _, tt := range []struct {
		name string
		loop func(ctx context.Context) error
		// what Err and Stop say, before and after Stop
		before, after string
	}{
		{"ends well", func(context.Context) error { return nil }, "", ""},
		{"ends when told to", untilDone, "", ""},
		{"ends when told to, wrapped", func(ctx context.Context) error { return fmt.Errorf("x: %w", untilDone(ctx)) }, "", ""},
		{"fails", func(context.Context) error { return errBroken }, "loop: broken", "loop: broken"},
		{"panics", func(context.Context) error { panic("boom") }, "loop: panic: boom", "loop: panic: boom"},
		{"panics in the runtime", func(context.Context) error { var p *bytes.Buffer; p.Reset(); return nil }, "loop: panic: runtime error", "loop: panic: runtime error"},
		{"says cancelled though nobody did", func(context.Context) error { return context.Canceled }, "loop: context canceled", "loop: context canceled"},
		{"fails while it stops", func(ctx context.Context) error { <-ctx.Done(); return errBroken }, "", "loop: broken"},
		{"panics while it stops", func(ctx context.Context) error { <-ctx.Done(); panic("late") }, "", "loop: panic: late"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				g := New(context.Background(), slog.New(slog.NewTextHandler(&log, nil)))
				g.Go("loop", tt.loop)
				g.Go("other", untilDone)
				synctest.Wait()
				check := func(err error, want string) {
					t.Helper()
					if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
						t.Errorf("%v, want %q", err, want)
					}
				}
				check(g.Err(), tt.before)
				err := g.Stop()
				check(err, tt.after)
				check(g.Stop(), tt.after)
				if strings.Contains(tt.after, "broken") && !errors.Is(err, errBroken) {
					t.Error("the error is not wrapped")
				}
				if (tt.after != "") != strings.Contains(log.String(), `"background loop failed"`) {
					t.Errorf("log %s", log.String())
				}
				if strings.Contains(tt.after, "panic") && !strings.Contains(err.Error(), "group_test.go") {
					t.Error("no stack")
				}
			})
		})
	}
}

func TestEveryFailureIsKept(t *testing.T) {
	g := New(context.Background(), slog.New(slog.DiscardHandler))
	g.Go("a", func(context.Context) error { return errBroken })
	g.Go("b", func(context.Context) error { panic("boom") })
	g.Guard("c", func() { panic("in a guard") })
	g.Guard("d", func() {})
	err := g.Stop()
	for _, want := range []string{"a: broken", "b: panic: boom", "c: panic: in a guard"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}

func TestParentEndsTheGroup(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	g := New(ctx, slog.New(slog.DiscardHandler))
	g.Go("loop", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	cancel()
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
}
