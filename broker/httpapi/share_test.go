package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker/wire"
)

// Whatever one producer opens and leaves open, another is served.
func TestNoProducerTakesAll(t *testing.T) {
	const greedy, quiet = "greedy", "quiet"
	keys := fmt.Sprintf("access: {producers: [{name: greedy, key_sha256: %s}, {name: quiet, key_sha256: %s}]}", hashed(greedy), hashed(quiet))
	for _, tt := range []struct {
		name, method, path, media string
		sent                      string // of a body that does not end; "": no body
		length                    int64  // that is declared; 0: none
		most                      int
		reason                    string // of whoever is refused
	}{
		{name: "event streams", method: http.MethodGet, path: "/v1/jobs/JOB/events", most: 20, reason: wire.ReasonTooManyStreams},
		{name: "long polls", method: http.MethodGet, path: "/v1/jobs/JOB?wait=60s", most: 20, reason: wire.ReasonTooManyStreams},
		{name: "batches of blank lines", method: http.MethodPost, path: "/v1/jobs/batch", media: ndJSON, sent: "\n", most: 600, reason: wire.ReasonBusy},
		{name: "halves of long lines", method: http.MethodPost, path: "/v1/jobs/batch", media: ndJSON, sent: `{"text":"` + strings.Repeat("x", 1<<20), most: 40, reason: wire.ReasonBusy},
		{name: "chunked bodies of a byte", method: http.MethodPost, path: "/v1/jobs", media: asJSON, sent: "{", length: -1, most: 40},
		{name: "bodies that declare the most and send a byte", method: http.MethodPost, path: "/v1/jobs", media: asJSON, sent: "{", length: 2 << 20, most: 40},
		{name: "halves of long bodies", method: http.MethodPost, path: "/v1/jobs", media: asJSON, sent: `{"text":"` + strings.Repeat("x", 1<<20), length: -1, most: 40, reason: wire.ReasonBusy},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inAPI(t, keys, func(a *api) {
				a.streams, a.waits = newShares(16, 0), newShares(16, 0)
				as := func(key string) []string { return []string{"Authorization", "Bearer " + key} }
				post := func(key string) string {
					w := a.send(http.MethodPost, "/v1/jobs", `{"text":"x","deadline_ms":600000}`, append(as(key), "Content-Type", asJSON)...)
					if w.Code != http.StatusAccepted {
						t.Errorf("%s is not served: %d %s", key, w.Code, w.Body)
					}
					return strings.TrimPrefix(w.Header().Get("Location"), "/v1/jobs/")
				}
				own, others := post(greedy), post(quiet)
				open := func(ctx context.Context, key, job string) *answer {
					var body io.Reader
					if tt.sent != "" {
						in, out := io.Pipe()
						body = in
						go func() {
							_, _ = io.WriteString(out, tt.sent)
							<-ctx.Done()
							_ = out.CloseWithError(io.ErrUnexpectedEOF)
						}()
					}
					header := as(key)
					if tt.media != "" {
						header = append(header, "Content-Type", tt.media)
					}
					w := a.declare(ctx, tt.length, tt.method, strings.ReplaceAll(tt.path, "JOB", job), body, header...)
					if in, ok := body.(*io.PipeReader); ok {
						_ = in.Close()
					}
					return w
				}
				ctx, leave := context.WithCancel(context.Background())
				var all sync.WaitGroup
				var mu sync.Mutex
				refused := map[string]int{}
				for range tt.most {
					all.Go(func() {
						w := open(ctx, greedy, own)
						mu.Lock()
						defer mu.Unlock()
						if ctx.Err() == nil || w.Code == http.StatusServiceUnavailable { // what is left of a body is read first
							refused[w.problem.Reason]++
						}
					})
					synctest.Wait() // not all at the store at once
				}
				// The other is let in while they stand, and what it does is not held up.
				in, goes := context.WithCancel(context.Background())
				all.Go(func() {
					w := open(in, quiet, others)
					if in.Err() == nil || w.problem.Reason == tt.reason && tt.reason != "" {
						t.Errorf("quiet is not let in: %d %s", w.Code, w.Body)
					}
				})
				synctest.Wait()
				post(quiet)
				time.Sleep(2 * bodyMemoryWait)
				goes()
				leave()
				all.Wait()
				if len(refused) > 1 || tt.reason != "" && refused[tt.reason] == 0 && tt.path != "/v1/jobs/batch" {
					t.Errorf("greedy was refused: %v", refused)
				}
			})
		})
	}
}

// Of what one producer asks at once a part alone is at the store, whatever the route,
// so that what another asks, and the gate, are not behind all of it.
func TestReadsAreShared(t *testing.T) {
	const greedy, quiet = "greedy", "quiet"
	keys := fmt.Sprintf("access: {producers: [{name: greedy, key_sha256: %s}, {name: quiet, key_sha256: %s}]}", hashed(greedy), hashed(quiet))
	for _, tt := range []struct{ method, path, body string }{
		{http.MethodGet, "/v1/jobs/JOB", ""},
		{http.MethodGet, "/v1/jobs/JOB?wait=60s", ""},
		{http.MethodGet, "/v1/jobs/JOB/events", ""},
		{http.MethodDelete, "/v1/jobs/JOB?only=delete", ""},
		{http.MethodGet, "/v1/jobs", ""},
		{http.MethodGet, "/v1/batches", ""},
		{http.MethodGet, "/v1/batches/BATCH", ""},
		{http.MethodGet, "/v1/batches/BATCH/lines", ""},
		{http.MethodGet, "/v1/batches/BATCH/results", ""},
		{http.MethodDelete, "/v1/batches/BATCH", ""},
		{http.MethodPost, "/v1/batches/BATCH", "no job\n"},
		{http.MethodPost, "/v1/jobs/batch", "no job\n"},
		{http.MethodGet, "/v1/gate", ""},
		{http.MethodGet, "/v1/pools", ""},
		{http.MethodGet, "/v1/flags", ""},
		{http.MethodGet, "/v1/flags/ADMIT_FREE", ""},
	} {
		t.Run(tt.method+" "+tt.path, func(t *testing.T) {
			inAPI(t, keys, func(a *api) {
				a.reads = newShares(8, 0)
				send := func(ctx context.Context, key, path, body string) *answer {
					return a.do(ctx, tt.method, path, strings.NewReader(body), "Authorization", "Bearer "+key, "Content-Type", ndJSON)
				}
				w := a.send(http.MethodPost, "/v1/jobs/batch", `{"text":"x","deadline_ms":600000}`+"\n", "Authorization", "Bearer "+greedy, "Content-Type", ndJSON)
				var l wire.BatchLine
				a.must(json.Unmarshal(w.Body.Bytes(), &l))
				path := strings.NewReplacer("JOB", l.Verdict.JobID, "BATCH", w.Header().Get(wire.HeaderBatchID)).Replace(tt.path)
				synctest.Wait()
				a.mu.Lock()
				a.held = make(chan struct{})
				a.mu.Unlock()
				ctx, leave := context.WithCancel(context.Background())
				var all sync.WaitGroup
				for range 20 {
					all.Go(func() { send(ctx, greedy, path, tt.body) })
				}
				theirs := a.calls()
				all.Go(func() { send(ctx, quiet, path, tt.body) })
				if n := a.calls() - theirs; theirs != 4 || n != 1 {
					t.Errorf("%d of 20 are at the store and %d of another's, want 4 of 8 and 1", theirs, n)
				}
				close(a.held)
				leave()
				all.Wait()
			})
		})
	}
}

// One alone has half, and who comes when others have theirs finds as much as each
// of them has.
func TestShares(t *testing.T) {
	s := newShares(120, 0)
	for _, tt := range []struct {
		who  string
		want int64
	}{{"one", 60}, {"two", 30}, {"three", 15}} {
		h := &hold{of: s, who: tt.who}
		for h.take(context.Background(), 1, 0) {
			continue
		}
		if h.n != tt.want {
			t.Errorf("%s has %d, want %d", tt.who, h.n, tt.want)
		}
	}
}

// Of bodies that together are more than their producer may hold each comes to its
// end, although all begin at once.
func TestHalfReadBodiesComeToTheirEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const whole = 10
		s := newShares(4*whole, whole)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				h := &hold{of: s, who: "one"}
				defer h.release()
				for n := range whole {
					if !h.take(context.Background(), 1, bodyMemoryWait) {
						t.Errorf("none after %d", n)
						return
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		all.Wait()
		if s.free != 4*whole || len(s.by) > 0 || s.waiting != 0 {
			t.Errorf("%+v", s)
		}
	})
}
