package backend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/rehearsal/pipenet"
)

func TestNewRefuses(t *testing.T) {
	ok := Config{Name: "n", BaseURL: "http://h/v1", Model: "m"}
	tests := []struct {
		field  string
		change func(*Config)
	}{
		{"", func(*Config) {}},
		{"Name", func(c *Config) { c.Name = "" }},
		{"Model", func(c *Config) { c.Model = "" }},
		{"Protocol", func(c *Config) { c.Protocol = "smtp" }},
		{"BaseURL", func(c *Config) { c.BaseURL = "" }},
		{"BaseURL", func(c *Config) { c.BaseURL = "ftp://h" }},
		{"BaseURL", func(c *Config) { c.BaseURL = "h:80" }},
		{"BaseURL", func(c *Config) { c.BaseURL = "http://" }},
		{"BaseURL", func(c *Config) { c.BaseURL = "http://me:hunter22@h" }},
		{"BaseURL", func(c *Config) { c.BaseURL = "http://h?key=hunter22" }},
		{"BaseURL", func(c *Config) { c.BaseURL = "http://h\x7f?hunter22" }},
		{"Path", func(c *Config) { c.Path = "chat" }},
		{"Path", func(c *Config) { c.Path = "/chat?key=hunter22" }},
		{"Path", func(c *Config) { c.Path = "//elsewhere/chat" }},
		{"KeyHeader", func(c *Config) { c.KeyHeader = "api key" }},
		{"Stall", func(c *Config) { c.Stall = -1 }},
		{"Key", func(c *Config) { c.Key = "hunter22\n" }},
		{"Headers", func(c *Config) { c.Headers = map[string]Secret{"X-A": "hunter22\r\nX-B: c"} }},
		{"Headers", func(c *Config) { c.Headers = map[string]Secret{"X A": "b"} }},
	}
	for _, tt := range tests {
		cfg := ok
		tt.change(&cfg)
		_, err := New(cfg)
		var ce *broker.FieldError
		switch {
		case tt.field == "" && err != nil:
			t.Error(err)
		case tt.field != "" && (!errors.As(err, &ce) || ce.Field != tt.field):
			t.Errorf("%v, want an error of %s", err, tt.field)
		case err != nil && strings.Contains(err.Error(), "hunter22"):
			t.Errorf("a secret in %v", err)
		}
	}
}

func TestRequestShape(t *testing.T) {
	cfg := Config{
		Key:     "sk-secret",
		Headers: map[string]Secret{"X-Tenant": "blue"},
	}
	req := Request{RequestID: "r-1", IdempotencyKey: "k-1", System: "Be short.", Text: "Text.", MaxOutputTokens: 99}
	want := map[Protocol]string{
		OpenAI:    `{"max_tokens":99,"messages":[{"role":"system","content":"Be short."},{"role":"user","content":"Text."}],"model":"m","stream":true,"stream_options":{"include_usage":true}}`,
		Anthropic: `{"max_tokens":99,"messages":[{"role":"user","content":"Text."}],"model":"m","stream":true,"system":"Be short."}`,
		Ollama:    `{"messages":[{"role":"system","content":"Be short."},{"role":"user","content":"Text."}],"model":"m","options":{"num_predict":99},"stream":true}`,
	}
	for _, d := range dialects {
		t.Run(string(d.protocol), func(t *testing.T) {
			g := call(t, cfg, req, time.Minute, d, func(o *out) { o.send(d.text("x"), d.end(FinishStop, 1, 1), d.terminator) })
			if g.err != nil {
				t.Fatal(g.err)
			}
			var got any
			if err := json.Unmarshal(g.reqBody, &got); err != nil {
				t.Fatal(err)
			}
			if string(g.reqBody) != want[d.protocol] {
				t.Errorf("body %s\nwant %s", g.reqBody, want[d.protocol])
			}
			headers := map[string]string{
				"X-Request-Id": "r-1", "Idempotency-Key": "k-1", "X-Tenant": "blue", "Content-Type": "application/json",
				"Accept-Encoding": "identity", "User-Agent": "leeway",
			}
			if d.protocol == Anthropic {
				headers["X-Api-Key"], headers["Anthropic-Version"] = "sk-secret", "2023-06-01"
			} else {
				headers["Authorization"] = "Bearer sk-secret"
			}
			for name, value := range headers {
				if got := g.reqHeader.Get(name); got != value {
					t.Errorf("%s: %q, want %q", name, got, value)
				}
			}
		})
	}
	t.Run("without", func(t *testing.T) {
		g := call(t, Config{}, Request{Text: "T", RequestID: "evil\r\nX-A: b"}, time.Minute, &openAIDialect, func(o *out) {
			o.send(openAIDialect.text("x"), openAIDialect.end(FinishStop, 1, 1))
		})
		if want := `{"messages":[{"role":"user","content":"T"}],"model":"m","stream":true,"stream_options":{"include_usage":true}}`; string(g.reqBody) != want {
			t.Errorf("body %s", g.reqBody)
		}
		for _, name := range []string{"Authorization", "X-Request-Id", "Idempotency-Key"} {
			if v, there := g.reqHeader[name]; there {
				t.Errorf("%s: %q", name, v)
			}
		}
	})
}

// No way of printing a client's words or faults shows a secret.
func TestSecretsStaySecret(t *testing.T) {
	const key, header = "sk-very-secret-key", "tenant-secret-value"
	cfg := Config{Key: key, Headers: map[string]Secret{"X-Tenant": header}}
	show := func(v any) string {
		var b strings.Builder
		fmt.Fprintf(&b, "%v %+v %#v %s", v, v, v, v)
		slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "v", v)
		slog.New(slog.NewTextHandler(&b, nil)).Info("x", "v", v)
		j, _ := json.Marshal(v)
		return b.String() + string(j)
	}
	texts := []string{show(cfg), show(cfg.Key), show(cfg.Headers)}
	for _, status := range []int{200, 400, 401, 403, 429, 500, 503} {
		g := call(t, cfg, Request{Text: "x"}, time.Minute, &openAIDialect, func(o *out) {
			o.header("Content-Type", "application/json")
			o.w.WriteHeader(status)
			o.send(`{"error":{"message":"Incorrect API key provided: ` + key + ` for ` + header + `"}}`)
		})
		texts = append(texts, show(g.err))
		g = call(t, cfg, Request{Text: "x"}, time.Minute, &openAIDialect, func(o *out) {
			o.w.WriteHeader(status)
			o.send(`{"error":{"message":"no","code":"unknown_parameter","param":"` + key + `"}}`)
		})
		texts = append(texts, show(g.err))
	}
	for _, s := range texts {
		if strings.Contains(s, key) || strings.Contains(s, header) {
			t.Errorf("a secret in %s", s)
		}
	}
}

// blackHole dials as the client's own dialer does when no packet comes back.
func blackHole(ctx context.Context, _, _ string) (net.Conn, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(dialBackstop):
		return nil, errors.New("timed out")
	}
}

func TestConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, dial := range map[string]func(context.Context, string, string) (net.Conn, error){
			"refused": func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
			},
			// A host that does not answer: nothing but the attempt's own
			// time ends the dialling.
			"black hole": blackHole,
		} {
			tr := newTransport()
			tr.DialContext = dial
			c, _ := New(Config{Name: "b", BaseURL: "http://h", Model: "m", Transport: tr})
			start := time.Now()
			a, err := c.Generate(t.Context(), Request{Text: "x", FirstByte: 2 * time.Second}, Observer{})
			var e *Error
			if !errors.As(err, &e) {
				t.Fatal(err)
			}
			want, took := ReasonConnect, time.Duration(0)
			if name == "black hole" {
				want, took = ReasonFirstByte, 2*time.Second
			}
			if e.Reason != want || time.Since(start) != took {
				t.Errorf("%s: %v after %v", name, e, time.Since(start))
			}
			if a.Usage != Unbilled() {
				t.Errorf("%s: %+v", name, a.Usage)
			}
		}
		time.Sleep(dialBackstop)
	})
}

func TestCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTransport()
		tr.DialContext = blackHole
		c, _ := New(Config{Name: "b", BaseURL: "http://h", Model: "m", Transport: tr})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := c.Generate(ctx, Request{Text: "x"}, Observer{})
		var e *Error
		if !errors.As(err, &e) || e.Reason != ReasonCancelled {
			t.Error(err)
		}
		time.Sleep(dialBackstop)
	})
}

// net/http sends some requests a second time on its own after the connection
// broke. A second generation must not happen behind the ledger's back: that the
// connection was a kept one is told, and none of them is used again.
func TestNoSilentSecondCall(t *testing.T) {
	const kept = 3
	for _, d := range dialects {
		synctest.Test(t, func(t *testing.T) {
			l := pipenet.Listen()
			calls, dials := atomic.Int32{}, atomic.Int32{}
			srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n := calls.Add(1)
				if n == kept+1 || n == kept+2 {
					// Received, then the connection broke.
					if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
						_ = conn.Close()
					}
					return
				}
				time.Sleep(time.Second) // so that each has a connection
				w.Header().Set("Content-Type", d.contentType)
				(&out{w, r}).send(d.text("x"), d.end(FinishStop, 1, 1), d.terminator)
			})}
			go func() { _ = srv.Serve(l) }()
			defer func() { _ = srv.Close() }()
			tr := newTransport()
			tr.DialContext = func(ctx context.Context, n, a string) (net.Conn, error) {
				dials.Add(1)
				return l.DialContext(ctx, n, a)
			}
			c, _ := New(Config{Name: "b", Protocol: d.protocol, BaseURL: "http://h", Model: "m", Transport: tr})
			defer c.Close()
			req := Request{Text: "x", IdempotencyKey: "k"}
			var wg sync.WaitGroup
			for range kept {
				wg.Go(func() {
					if _, err := c.Generate(t.Context(), req, Observer{}); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			synctest.Wait()
			for n, stale := range []bool{true, false} {
				_, err := c.Generate(t.Context(), req, Observer{})
				var e *Error
				if !errors.As(err, &e) || e.Reason != ReasonReset || e.Stale != stale || int(calls.Load()) != kept+1+n || int(dials.Load()) != kept+n {
					t.Errorf("%s: %+v after %d calls on %d connections", d.protocol, err, calls.Load(), dials.Load())
				}
			}
		})
	}
}

// Connections are let go before common servers close them.
func TestIdleConnectionIsLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := pipenet.Listen()
		srv := &http.Server{IdleTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			(&out{w, r}).send(openAIDialect.whole("x", "", FinishStop, 1, 1))
		})}
		idle, closed := time.Time{}, make(chan time.Duration, 1)
		srv.ConnState = func(_ net.Conn, s http.ConnState) {
			switch s {
			case http.StateIdle:
				idle = time.Now()
			case http.StateClosed:
				closed <- time.Since(idle)
			default:
			}
		}
		go func() { _ = srv.Serve(l) }()
		defer func() { _ = srv.Close() }()
		tr := newTransport()
		tr.DialContext = l.DialContext
		c, _ := New(Config{Name: "b", BaseURL: "http://h", Model: "m", Transport: tr})
		if _, err := c.Generate(t.Context(), Request{Text: "x"}, Observer{}); err != nil {
			t.Fatal(err)
		}
		if after := <-closed; after >= 5*time.Second {
			t.Errorf("kept for %v", after)
		}
	})
}

// After an answer the connection is used again.
func TestConnectionIsReused(t *testing.T) {
	for _, d := range dialects {
		synctest.Test(t, func(t *testing.T) {
			l := pipenet.Listen()
			srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", d.contentType)
				(&out{w, r}).send(d.text("x"), d.end(FinishStop, 1, 1), d.terminator)
			})}
			go func() { _ = srv.Serve(l) }()
			defer func() { _ = srv.Close() }()
			dials := 0
			tr := newTransport()
			tr.DialContext = func(ctx context.Context, n, a string) (net.Conn, error) { dials++; return l.DialContext(ctx, n, a) }
			defer tr.CloseIdleConnections()
			c, _ := New(Config{Name: "b", Protocol: d.protocol, BaseURL: "http://h", Model: "m", Transport: tr})
			for range 5 {
				if _, err := c.Generate(t.Context(), Request{Text: "x"}, Observer{}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			if dials != 1 {
				t.Errorf("%s: %d connections for 5 calls", d.protocol, dials)
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tests := []struct {
		headers map[string]string
		want    time.Duration
	}{
		{nil, 0},
		{map[string]string{"Retry-After": "2"}, 2 * time.Second},
		{map[string]string{"Retry-After": " 2 "}, 2 * time.Second},
		{map[string]string{"Retry-After": "0.5"}, 500 * time.Millisecond},
		{map[string]string{"Retry-After": "0"}, 0},
		{map[string]string{"Retry-After": "-3"}, 0},
		{map[string]string{"Retry-After": "NaN"}, 0},
		{map[string]string{"Retry-After": "Inf"}, maxRetryAfter},
		{map[string]string{"Retry-After": "1e300"}, maxRetryAfter},
		{map[string]string{"Retry-After": "soon"}, 0},
		{map[string]string{"Retry-After-Ms": "150", "Retry-After": "9"}, 150 * time.Millisecond},
		{map[string]string{"Retry-After": "Fri, 02 Jan 2026 03:04:15 GMT"}, 10 * time.Second},
		{map[string]string{"Retry-After": "Fri, 02 Jan 2026 03:04:00 GMT"}, 0},
		// The backend's clock is five minutes ahead of ours.
		{map[string]string{"Retry-After": "Fri, 02 Jan 2026 03:09:15 GMT", "Date": "Fri, 02 Jan 2026 03:09:05 GMT"}, 10 * time.Second},
	}
	for _, tt := range tests {
		h := http.Header{}
		for k, v := range tt.headers {
			h.Set(k, v)
		}
		if got := retryAfter(h, now); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.headers, got, tt.want)
		}
	}
}

func TestReasonsAreClosed(t *testing.T) {
	seen := map[Reason]bool{}
	for _, r := range Reasons {
		if r == "" || seen[r] {
			t.Errorf("reason %q", r)
		}
		seen[r] = true
	}
}

func TestTextForms(t *testing.T) {
	for in, want := range map[string]string{
		`"x"`: "x", `null`: "", `[]`: "", `[{"type":"text","text":"a"},{"type":"image"},{"type":"text","text":"b"},3]`: "ab",
		`{"a":1}`: "", `7`: "",
		// Halves of a character are kept at the ends, for the piece beside them.
		`"x\ud800"`: "x\xed\xa0\x80", `"\udfffx"`: "\xed\xbf\xbfx", `"\ud83d\ude00"`: "😀", `"x\ud800x"`: "x\ufffdx", `"\\ud800"`: `\ud800`, `"\ud800\ud800"`: "\ufffd\xed\xa0\x80", "\"a\xf0\x9f\"": "a\xf0\x9f",
	} {
		var got text
		if err := json.Unmarshal([]byte(in), &got); err != nil || string(got) != want {
			t.Errorf("%s: %q %v", in, got, err)
		}
	}
}
