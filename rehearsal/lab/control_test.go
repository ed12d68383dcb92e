package lab

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

	"leeway/rehearsal/pipenet"
)

// call makes a control request and returns its status and body.
func (l *lab) call(method, path, body string) (int, string) {
	l.t.Helper()
	r, err := http.NewRequestWithContext(l.t.Context(), method, "http://lab/control"+path, strings.NewReader(body))
	if err != nil {
		l.t.Fatal(err)
	}
	resp, err := l.control.Do(r)
	if err != nil {
		l.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(b))
}

func TestControl(t *testing.T) {
	inLab(t, Config{Profile: "fixed:1200ms", Slots: 2}, func(l *lab) {
		for _, tt := range []struct {
			method, path, body string
			status             int
			want               string // exact, unless it begins with "~"
		}{
			{"GET", "/fault", "", 200, `{}`},
			{"PUT", "/fault", `{"name":"stall","ms":10}`, 200, `{"name":"stall","ms":10}`},
			{"GET", "/fault", "", 200, `{"name":"stall","ms":10}`},
			{"PUT", "/fault", `{"name":"slow.20s","count":3}`, 200, `{"name":"slow.20s","count":3}`},
			{"PUT", "/fault", `{"name":"meteor"}`, 400, `~unknown fault`},
			{"PUT", "/fault", `{"name":"slow.7s"}`, 400, `~unknown variant`},
			{"PUT", "/fault", `{"name":"ok","count":-1}`, 400, `~count`},
			{"PUT", "/fault", `{"name":"ok","ms":-1}`, 400, `~ms`},
			{"PUT", "/fault", `{"name":"ok","ms":86400001}`, 400, `~ms`},
			{"PUT", "/fault", `{"name":"ok","kind":1}`, 400, `~kind`},
			{"PUT", "/fault", `{"name":"ok"} {}`, 400, `~after top-level value`},
			{"PUT", "/fault", `{"name":"` + strings.Repeat("x", maxControlBody) + `"}`, 400, `~too large`},
			{"GET", "/fault", "", 200, `{"name":"slow.20s","count":3}`}, // what is refused changes nothing
			{"DELETE", "/fault", "", 200, `{}`},
			{"GET", "/fault", "", 200, `{}`},
			{"GET", "/profile", "", 200, `{"profile":"fixed:1.2s","tail":"0","slots":2}`},
			{"PUT", "/profile", `{"profile":"fixed:6s"}`, 200, `{"profile":"fixed:6s","tail":"0","slots":2}`},
			{"PUT", "/profile", `{"tail":"1s","slots":0}`, 200, `{"profile":"fixed:6s","tail":"1s","slots":0}`},
			{"PUT", "/profile", `{"profile":"load:1=2"}`, 400, `~no tail`},
			{"PUT", "/profile", `{"profile":"x"}`, 400, `~profile`},
			{"PUT", "/profile", `{"tail":"x"}`, 400, `~tail`},
			{"PUT", "/profile", `{"slots":-1}`, 400, `~slots`},
			{"GET", "/profile", "", 200, `{"profile":"fixed:6s","tail":"1s","slots":0}`},
			{"GET", "/state", "", 200, `{"in_service":0,"waiting":0,"attempts":0}`},
			{"GET", "/faults", "", 200, `~"name":"paid-in-disguise"`},
			{"GET", "/attempts", "", 200, ``},
			{"GET", "/attempts?since=x", "", 400, `~since`},
			{"GET", "/other", "", 404, `~404`},
		} {
			status, body := l.call(tt.method, tt.path, tt.body)
			part, isPart := strings.CutPrefix(tt.want, "~")
			if status != tt.status || (isPart && !strings.Contains(body, part)) || (!isPart && body != tt.want) {
				t.Errorf("%s %s %.80s: %d %.200s; want %d %s", tt.method, tt.path, tt.body, status, body, tt.status, tt.want)
			}
		}
		if rep := l.send(ask{stream: true}); rep.firstAt != 6*time.Second || rep.endAt != 7*time.Second {
			t.Errorf("first byte at %v, end at %v; want the profile that was set", rep.firstAt, rep.endAt)
		}
	})
}

func TestAttemptsAsJSONLines(t *testing.T) {
	inLab(t, Config{Profile: "fixed:1s", LogSize: 3}, func(l *lab) {
		began := time.Now()
		for i := range 5 {
			r := l.request(ask{key: fmt.Sprint("key-", i), stream: true})
			r.Header.Set("X-Request-Id", fmt.Sprint("req-", i))
			resp, err := l.client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
		}
		ctx, cancel := context.WithCancel(l.t.Context())
		go l.send(ask{model: "fault-silent", ctx: ctx})
		synctest.Wait()
		status, body := l.call("GET", "/attempts", "")
		lines := strings.Split(body, "\n")
		if status != 200 || len(lines) != 3 {
			t.Fatalf("%d, %d lines: %s", status, len(lines), body)
		}
		var a Attempt
		if err := json.Unmarshal([]byte(lines[1]), &a); err != nil {
			t.Fatal(err)
		}
		want := Attempt{
			Seq: 5, ReceivedAtMS: began.Add(4 * time.Second).UnixMilli(), ID: "req_lab_5", RequestID: "req-4", IdempotencyKey: "key-4",
			Model: DefaultModel, Stream: true, InService: 1, FirstByteMS: 1000, FirstByteAtMS: began.Add(5 * time.Second).UnixMilli(),
			ElapsedMS: 1000, EndAtMS: began.Add(5 * time.Second).UnixMilli(), Status: 200, PromptTokens: 123, CompletionTokens: 123, Ended: EndedOK,
		}
		if a != want {
			t.Errorf("attempt %+v\nwant    %+v", a, want)
		}
		if !strings.Contains(lines[2], `"ended":"open"`) || !strings.Contains(lines[2], `"first_byte_ms":-1`) {
			t.Errorf("the open one: %s", lines[2])
		}
		if _, since := l.call("GET", "/attempts?since=5", ""); since != lines[2] {
			t.Errorf("since 5: %s", since)
		}
		if a, forgotten := l.Attempts(0); len(a) != 3 || forgotten != 3 {
			t.Errorf("%d remembered, %d forgotten", len(a), forgotten)
		}
		cancel()
		synctest.Wait()
		if a, _ := l.Attempts(5); a[0].Ended != EndedClientGone {
			t.Errorf("silent one ended %s", a[0].Ended)
		}
		if status, _ := l.call("DELETE", "/attempts", ""); status != 204 {
			t.Errorf("DELETE: %d", status)
		}
		if _, body := l.call("GET", "/attempts", ""); body != "" {
			t.Errorf("after DELETE: %s", body)
		}
		l.send(ask{})
		if a, _ := l.Attempts(0); len(a) != 1 || a[0].Seq != 7 {
			t.Errorf("after DELETE the next is %+v", a)
		}
	})
}

// A lab that is stopped ends at once whatever it is doing: in service, silent,
// queueing, waiting for another's answer, with the door shut.
func TestServeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Config{Profile: "fixed:1h", Slots: 2, Dedupe: true})
		if err != nil {
			t.Fatal(err)
		}
		api := pipenet.Listen()
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx, api, nil) }()
		tr := &http.Transport{DialContext: api.DialContext}
		l := &lab{Server: s, t: t, client: &http.Client{Transport: tr}}
		var wg sync.WaitGroup
		for _, a := range []ask{{key: "k"}, {model: "fault-silent"}, {}, {key: "k"}, {model: "fault-drip", stream: true}} {
			wg.Go(func() { l.send(a) })
			synctest.Wait()
		}
		start := time.Now()
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("took %v to end", d)
		}
		wg.Wait()
		tr.CloseIdleConnections()
		attempts, _ := s.Attempts(0)
		if len(attempts) != 5 {
			t.Errorf("%d attempts", len(attempts))
		}
		for _, a := range attempts {
			if a.Ended != EndedShutdown {
				t.Errorf("attempt %d ended %s", a.Seq, a.Ended)
			}
		}
	})
}

func TestServeEndsWhileRefusing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SetFault(Fault{Name: "down.refused"}); err != nil { // before it serves
			t.Fatal(err)
		}
		api := pipenet.Listen()
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx, api, nil) }()
		synctest.Wait()
		if _, err := api.DialContext(t.Context(), "", ""); err == nil {
			t.Error("dial went through")
		}
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

// A waiter that gives up leaves the queue; one that is handed a slot as it
// gives up passes it on.
func TestSlotsLoseNothingWhenWaitersGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slots{limit: 1, queue: 10}
		if err := s.acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 2)
		go func() { errs <- s.acquire(ctx) }()
		synctest.Wait()
		got := make(chan error, 1)
		go func() { got <- s.acquire(t.Context()) }()
		synctest.Wait()
		cancel()
		s.release() // both at once: the first waiter may or may not have it
		err := <-errs
		if err == nil {
			s.release()
		}
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		if held, waiting := s.counts(); held != 1 || waiting != 0 {
			t.Errorf("%d held, %d waiting", held, waiting)
		}
		s.release()
		if err := s.acquire(ctx); err == nil {
			t.Error("acquired under a context that had ended")
		}
		if held, _ := s.counts(); held != 0 {
			t.Errorf("%d held at the end", held)
		}
	})
}
