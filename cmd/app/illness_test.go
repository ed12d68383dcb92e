package app_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/broker/wire"
	"leeway/rehearsal/lab"
	"leeway/slackgate"
)

// Texts that a backend refuses, each in its way, beside jobs that it serves.
var refusedTexts = map[string]string{
	"firewall":  "How to list all rows: SELECT * FROM accounts. " + document,
	"long-text": strings.Repeat(document+" ", 60),
}

// ward is a paid pool of n like backends, each with room for four.
func ward(t *testing.T, n int) *world {
	cfg := config.Default()
	cfg.Pools.Free.Limit = 0
	cfg.Pools.Paid = config.Pool{Limit: 8, FirstByteP95MS: 800}
	cfg.Classes = config.Classes{"summary": {Prefer: config.PaidOnly}}
	cfg.Worker.PollMS = 100 // these tests take minutes
	labs := map[slackgate.Path][]lives{}
	for range n {
		labs[slackgate.Paid] = append(labs[slackgate.Paid], lives{profile: "fixed:400ms", tail: "0", slots: 8, p95: 800})
	}
	return start(t, cfg, labs)
}

// states are the paid backends' states as its worker reports them.
func (w *world) states() string {
	pools, err := w.client.Pools(context.Background())
	must(w.t, err)
	var all []string
	for _, b := range pools.Backends {
		all = append(all, b.Backend+" "+b.State)
	}
	return strings.Join(all, ", ")
}

// untilStates waits for the states, for at most so long.
func (w *world) untilStates(want string, atMost time.Duration) {
	w.t.Helper()
	for began := time.Now(); w.states() != want; time.Sleep(100 * time.Millisecond) {
		if time.Since(began) > atMost {
			w.t.Fatalf("the backends are %s after %v, want %s", w.states(), atMost, want)
		}
	}
}

// What a backend says of one producer's texts is no illness of it: not one of
// the other producers' jobs is lost, however many such texts come.
func TestRefusedTextsAreNoIllness(t *testing.T) {
	for _, tt := range []struct {
		fault    string
		backends int
	}{
		{"firewall", 1}, {"firewall", 2},
		{"long-text.400", 1}, {"long-text.400", 2}, {"long-text.403", 2}, {"long-text.422", 2},
		{"long-text.500", 1}, {"long-text.500", 2},
	} {
		t.Run(fmt.Sprintf("%s, %d backends", tt.fault, tt.backends), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := ward(t, tt.backends)
				for name := range w.labs {
					must(t, w.labs[name].SetFault(lab.Fault{Name: tt.fault}))
				}
				kind, _, _ := strings.Cut(tt.fault, ".")
				var small atomic.Int64
				verdicts, ends := w.offerAt(54, 200*time.Millisecond, func(i int) *client.Job {
					if i%9%2 == 0 {
						return &client.Job{Text: refusedTexts[kind], Producer: "large"}
					}
					small.Add(1)
					return &client.Job{Text: document, Producer: "small"}
				})
				outcomes := map[string]broker.Outcome{}
				for _, v := range ends {
					outcomes[v.ID] = v.Outcome
				}
				usable, refused := 0, map[slackgate.Reason]int{}
				for i, v := range verdicts {
					switch {
					case i%9%2 == 0 && v.Path != slackgate.Reject:
						if o := outcomes[v.JobID]; o != broker.OutcomeFailed {
							t.Errorf("a text that is refused ended as %s", o)
						}
					case i%9%2 == 0:
					case v.Path == slackgate.Reject:
						refused[v.Reason]++
					case outcomes[v.JobID] == broker.OutcomeUsable:
						usable++
					}
				}
				if n := small.Load(); n != 24 || usable != 24 {
					t.Errorf("%d of %d small jobs usable, refused %v", usable, n, refused)
				}
				time.Sleep(2 * time.Second) // workers report once a second
				want := strings.Join([]string{"paid-1 closed", "paid-2 closed"}[:tt.backends], ", ")
				w.untilStates(want, 0)
			})
		})
	}
}

// A backend that refuses everything, a probe as well, is out; it is probed, and
// comes back when it is well or an operator says so.
func TestOutIsProbed(t *testing.T) {
	for _, fault := range []string{"auth", "auth.403", "firewall.all"} {
		t.Run(fault, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := ward(t, 2)
				sick := w.labs["paid-1"]
				run := func(by string) {
					t.Helper()
					end := w.wait(w.submit(&client.Job{Text: document}).JobID)
					if end.Outcome != broker.OutcomeUsable || end.Backend != by {
						t.Fatalf("%s by %s, want usable by %s", end.Outcome, end.Backend, by)
					}
				}
				run("paid-1")
				must(t, sick.SetFault(lab.Fault{Name: fault}))
				for range 3 {
					run("paid-2")
				}
				w.untilStates("paid-1 out, paid-2 closed", 3*time.Second)
				seen, _ := sick.Attempts(0)
				run("paid-2")
				time.Sleep(time.Minute)
				probed, _ := sick.Attempts(0)
				if n := len(probed) - len(seen); n < 3 || n > 8 {
					t.Errorf("probed %d times in a minute; want a few, further and further apart", n)
				}
				must(t, sick.SetFault(lab.Fault{Name: "ok"}))
				w.untilStates("paid-1 closed, paid-2 closed", 65*time.Second)
				run("paid-1")

				time.Sleep(5 * time.Second) // an answered probe is trusted for a while
				must(t, sick.SetFault(lab.Fault{Name: fault}))
				for range 3 {
					run("paid-2")
				}
				w.untilStates("paid-1 out, paid-2 closed", 3*time.Second)
				time.Sleep(time.Minute) // the next probe is far away
				must(t, sick.SetFault(lab.Fault{Name: "ok"}))
				_, err := w.client.Resume(t.Context(), "paid", "paid-1", &wire.Order{Reason: "the key was replaced", By: "on-call"})
				must(t, err)
				w.untilStates("paid-1 closed, paid-2 closed", 2*time.Second)
				run("paid-1")
			})
		})
	}
}
