package attempt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"leeway/broker"
	"leeway/rehearsal/pipenet"
	"leeway/workers/backend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// seen is one request as the backend saw it.
type seen struct {
	at        time.Duration // since the world began
	requestID string
	key       string
	model     string
}

// world is a set of backends and their clients inside a bubble.
type world struct {
	t     *testing.T
	start time.Time
	mu    sync.Mutex
	seen  map[string][]seen
}

// bubble runs f with backends in virtual time.
func bubble(t *testing.T, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(&world{t: t, start: time.Now(), seen: map[string][]seen{}})
	})
}

// reply writes one response; n counts the backend's requests from 0.
type reply func(o *out, n int)

// backend starts a backend that answers with play. A nil play refuses
// connections.
func (w *world) backend(name string, play reply) backend.Config {
	tr := &http.Transport{DisableCompression: true}
	if play == nil {
		tr.DialContext = func(context.Context, string, string) (net.Conn, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.seen[name] = append(w.seen[name], seen{at: time.Since(w.start)})
			return nil, errors.New("connection refused")
		}
		return backend.Config{Name: name, BaseURL: "http://" + name, Model: "model-" + name, Transport: tr}
	}
	l := pipenet.Listen()
	tr.DialContext = l.DialContext
	srv := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var body struct {
			Model string `json:"model"`
		}
		raw, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(raw, &body)
		w.mu.Lock()
		n := len(w.seen[name])
		w.seen[name] = append(w.seen[name], seen{time.Since(w.start), r.Header.Get("X-Request-Id"), r.Header.Get("Idempotency-Key"), body.Model})
		w.mu.Unlock()
		rw.Header().Set("Content-Type", "text/event-stream")
		play(&out{rw, r}, n)
	})}
	go func() { _ = srv.Serve(l) }()
	w.t.Cleanup(func() { tr.CloseIdleConnections(); _ = srv.Close() })
	return backend.Config{Name: name, BaseURL: "http://" + name, Model: "model-" + name, Transport: tr}
}

func (w *world) client(cfg backend.Config) *backend.Client {
	c, err := backend.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) runner(cfg Config) *Runner {
	r, err := NewRunner(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *world) calls(name string) []seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]seen(nil), w.seen[name]...)
}

// out writes OpenAI streams.
type out struct {
	w http.ResponseWriter
	r *http.Request
}

func (o *out) send(s string) {
	if _, err := io.WriteString(o.w, s); err != nil {
		panic(http.ErrAbortHandler)
	}
	if err := http.NewResponseController(o.w).Flush(); err != nil {
		panic(http.ErrAbortHandler)
	}
}

func (o *out) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-o.r.Context().Done():
		panic(http.ErrAbortHandler)
	}
}

func (o *out) text(s string) {
	b, _ := json.Marshal(s)
	o.send(fmt.Sprintf(`data: {"choices":[{"index":0,"delta":{"content":%s}}]}`+"\n\n", b))
}

func (o *out) end(finish string, in, outTokens int) {
	o.send(fmt.Sprintf(`data: {"choices":[{"index":0,"delta":{},"finish_reason":%q}]}`+"\n\n"+
		`data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`+"\n\ndata: [DONE]\n\n", finish, in, outTokens))
}

func (o *out) status(code int, body string) {
	o.w.Header().Set("Content-Type", "application/json")
	o.w.WriteHeader(code)
	o.send(body)
}

// answers replies with a whole answer after first, its last piece after hold
// more.
func answers(first, hold time.Duration, text string) reply {
	return func(o *out, _ int) {
		o.sleep(first)
		o.text(text)
		o.sleep(hold)
		o.end("stop", 10, 5)
	}
}

func silent(o *out, _ int) { o.sleep(time.Hour) }

func refuses(code int, body string) reply {
	return func(o *out, _ int) { o.status(code, body) }
}

// ledger keeps what the hooks were told and finds fault with their order.
type ledger struct {
	t       *testing.T
	mu      sync.Mutex
	open    map[int]Call
	settled []Attempt
}

func newLedger(t *testing.T) *ledger { return &ledger{t: t, open: map[int]Call{}} }

func (l *ledger) hooks() Hooks {
	return Hooks{
		Before: func(_ context.Context, c Call) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.open[c.Number] = c
			return nil
		},
		After: func(a Attempt) {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.open[a.Number] != a.Call {
				l.t.Errorf("attempt %d settled but not open", a.Number)
			}
			delete(l.open, a.Number)
			l.settled = append(l.settled, a)
		},
	}
}

func (l *ledger) check() {
	l.t.Helper()
	if len(l.open) > 0 {
		l.t.Errorf("%d attempts never settled", len(l.open))
	}
}

// fixed is a price that never changes.
func fixed(p backend.Price) func() backend.Price { return func() backend.Price { return p } }

// notBilled is short for tables.
const notBilled = broker.KnownUnbilled

func job(left time.Duration) Job {
	return Job{ID: "j1", System: "Summarise.", Text: strings.Repeat("word ", 100), Left: left}
}

// attempts shortens a result for comparison: backend and reason of each.
func attempts(res Result) string {
	var b strings.Builder
	for i, a := range res.Attempts {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(a.Backend)
		if a.Reason != "" {
			b.WriteString(":" + string(a.Reason))
		}
	}
	return b.String()
}
