package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/wire"
	"leeway/slackgate"
)

const limitsDoc = `
producers:
  fast: {submissions_per_s: 2, burst: 3}
  few: {max_in_flight: 2}
  small: {classes: [summary], text_bytes: 10, batch_lines: 2}
classes: {summary: {}, other: {}}
`

// One whose key says that it is fast.
var (
	fastDoc = "producers: {fast: {submissions_per_s: 2, burst: 3}}\naccess: {producers: [{name: fast, key_sha256: " + hashed("a") + "}]}\n"
	asFast  = []string{"Authorization", "Bearer a"}
)

func TestRateLimit(t *testing.T) {
	inAPI(t, limitsDoc, func(a *api) {
		submit := func() *answer { return a.submitAs("fast", "summary") }
		for i, want := range []string{"2;t=1", "1;t=1", "0;t=2"} {
			w := submit()
			if got := w.Header().Get(HeaderRateLimit); w.Code != http.StatusAccepted || got != `"submissions";r=`+want {
				t.Errorf("submission %d: %d, %q", i, w.Code, got)
			}
			if got := w.Header().Get(HeaderRateLimitPolicy); got != `"submissions";q=3;w=2` {
				t.Errorf("policy %q", got)
			}
		}
		misses := len(a.misses())
		for _, body := range []string{`{"text":"x","producer":"fast"}`, `{"text":"x","producer":"fast","deadline_ms":1}`} {
			w := a.submit(body)
			if v := w.problem.Verdict; w.Code != 429 || w.problem.Reason != "reject_rate" || v.Limit != slackgate.LimitRate || w.Header().Get("Retry-After") != "1" {
				t.Errorf("%d %s, Retry-After %q", w.Code, w.Body, w.Header().Get("Retry-After"))
			}
			if got := w.Header().Get(HeaderRateLimit); got != `"submissions";r=0;t=2` {
				t.Errorf("%q", got)
			}
		}
		if len(a.misses()) != misses {
			t.Error("what came too fast was booked as a miss")
		}
		// Each half second makes one good again; refused ones cost nothing.
		time.Sleep(499 * time.Millisecond)
		if w := submit(); w.Code != 429 {
			t.Errorf("too soon: %d", w.Code)
		}
		time.Sleep(2 * time.Millisecond)
		if w := submit(); w.Code != http.StatusAccepted {
			t.Errorf("half a second later: %d %s", w.Code, w.Body)
		}
		// A key that is bound is answered whatever the rate.
		time.Sleep(time.Hour)
		key := []string{"Content-Type", asJSON, wire.HeaderIdempotencyKey, "k"}
		body := `{"text":"x","producer":"fast","deadline_ms":9000000}`
		for i := range 9 {
			w := a.send(http.MethodPost, "/v1/jobs", body, key...)
			if want := map[bool]int{true: 202, false: 200}[i == 0]; w.Code != want {
				t.Errorf("repetition %d: %d %s", i, w.Code, w.Body)
			}
		}
		// Others are not limited, and told nothing.
		for range 9 {
			if w := a.submitAs("other", "summary"); w.Code != http.StatusAccepted || w.Header().Get(HeaderRateLimit) != "" || w.Header().Get(HeaderRateLimitPolicy) != "" {
				t.Errorf("%d %v", w.Code, w.Header())
			}
		}
	})
}

func TestInFlightLimit(t *testing.T) {
	inAPI(t, limitsDoc, func(a *api) {
		for _, want := range []string{"1", "0"} {
			w := a.submitAs("few", "summary")
			if got := w.Header().Get(HeaderRateLimit); w.Code != http.StatusAccepted || got != `"in-flight";r=`+want {
				t.Errorf("%d %q", w.Code, got)
			}
		}
		w := a.submitAs("few", "summary")
		if v := w.problem.Verdict; w.Code != 429 || w.problem.Reason != "reject_rate" || v.Limit != slackgate.LimitInFlight || w.Header().Get("Retry-After") == "" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if got := w.Header().Get(HeaderRateLimitPolicy); got != `"in-flight";q=2;qu="concurrent-requests"` {
			t.Errorf("%q", got)
		}
		// One ends: there is room for one.
		_, err := a.store.Finish(a.t.Context(), a.claim(), &broker.Finish{Outcome: broker.OutcomeUsable, Answer: "x"})
		a.must(err)
		if w := a.submitAs("few", "summary"); w.Code != http.StatusAccepted {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if w := a.submitAs("few", "summary"); w.Code != 429 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

func TestProducersOwnBounds(t *testing.T) {
	inAPI(t, limitsDoc, func(a *api) {
		for _, tt := range []struct{ body, want string }{
			{`{"producer":"small","text":"0123456789"}`, "202 "},
			{`{"producer":"small","text":"01234567890"}`, "400 invalid_field text"},
			{`{"producer":"small","text":"x","class":"other"}`, "403 forbidden class"},
			{`{"producer":"else","text":"01234567890","class":"other"}`, "202 "},
		} {
			w := a.submit(tt.body)
			if got := strings.TrimSpace(fmt.Sprintf("%d %s", w.Code, w.reason())); got != strings.TrimSpace(tt.want) {
				t.Errorf("%s: %s", tt.body, got)
			}
		}
	})
	keyed := limitsDoc + "access: {producers: [{name: small, key_sha256: " + hashed("s") + "}, {name: few, key_sha256: " + hashed("f") + "}, {name: fast, key_sha256: " + hashed("a") + "}]}\n"
	inAPI(t, keyed, func(a *api) {
		w := a.send(http.MethodPost, "/v1/jobs/batch", strings.Repeat(`{"text":"x"}`+"\n", 4), "Content-Type", ndJSON, "Authorization", "Bearer s")
		if lines := strings.Split(strings.TrimSpace(w.Body.String()), "\n"); len(lines) != 3 || !strings.Contains(lines[2], `"too_large"`) {
			t.Errorf("%s", w.Body)
		}
		// Each line of a batch is a submission.
		w = a.send(http.MethodPost, "/v1/jobs/batch", strings.Repeat(`{"text":"x","deadline_ms":600000}`+"\n", 5), "Content-Type", ndJSON, "Authorization", "Bearer a")
		if n := strings.Count(w.Body.String(), `"reject_rate"`); w.Header().Get(HeaderRateLimitPolicy) != `"submissions";q=3;w=2` || n == 0 || strings.Count(w.Body.String(), `"path":"paid"`) != 3 {
			t.Errorf("%v %s", w.Header(), w.Body)
		}
		if w := a.send(http.MethodGet, "/v1/models", "", "Authorization", "Bearer s"); strings.Contains(w.Body.String(), `"other"`) || !strings.Contains(w.Body.String(), `"summary"`) {
			t.Errorf("%s", w.Body)
		}
	})
}

func TestLimitHeaders(t *testing.T) {
	for _, tt := range []struct {
		quota        slackgate.Quota
		admitted     bool
		policy, left string
	}{
		{slackgate.Quota{}, true, "", ""},
		{slackgate.NewQuota(0.5, 0, 0), true, `"submissions";q=1;w=2`, `"submissions";r=0;t=2`},
		{slackgate.NewQuota(100, 10, 0), true, `"submissions";q=100;w=1`, `"submissions";r=9;t=1`},
		{slackgate.NewQuota(100_000, 100_000, 7), false, `"submissions";q=100000;w=1, "in-flight";q=7;qu="concurrent-requests"`, `"submissions";r=99999;t=1, "in-flight";r=7`},
		{slackgate.Quota{MaxInFlight: 2, InFlight: 5}, false, `"in-flight";q=2;qu="concurrent-requests"`, `"in-flight";r=0`},
	} {
		w := httptest.NewRecorder()
		v := &broker.Verdict{Quota: tt.quota}
		if tt.admitted {
			v.Path = slackgate.Paid
		}
		limitHeaders(w.Header(), v)
		if p, l := w.Header().Get(HeaderRateLimitPolicy), w.Header().Get(HeaderRateLimit); p != tt.policy || l != tt.left {
			t.Errorf("%+v: %s, %s", tt.quota, p, l)
		}
	}
}

// What a producer sends counts in its rate whether or not it is a job.
func TestWhatIsNoJobCounts(t *testing.T) {
	const good, bad = `{"text":"x","deadline_ms":600000}`, `{"text":1}`
	inAPI(t, fastDoc, func(a *api) {
		var got []int
		for _, body := range []string{bad, "not even JSON", `{"text":""}`, bad, good} {
			got = append(got, a.send(http.MethodPost, "/v1/jobs", body, append(asFast, "Content-Type", asJSON)...).Code)
		}
		if fmt.Sprint(got) != "[400 400 400 429 429]" {
			t.Errorf("jobs: %v", got)
		}
	})
	inAPI(t, fastDoc, func(a *api) {
		lines := []string{bad, "not even JSON", `{"text":"` + strings.Repeat("x", int(a.cfg.LineBytes("fast"))), good, bad}
		if got, want := words(a.batch(strings.NewReader(strings.Join(lines, "\n")), asFast...)),
			"1:400/invalid_field/text 2:400/invalid_json/body 3:400/invalid_field/body 4:429/reject_rate/ 5:429/reject_rate/"; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
	inAPI(t, fastDoc, func(a *api) {
		var got []int
		for range 4 {
			w, _ := a.chat(context.Background(), `{"messages":1}`, asFast...)
			got = append(got, w.Code)
		}
		if fmt.Sprint(got) != "[400 400 400 429]" {
			t.Errorf("chats: %v", got)
		}
	})
}

// What is on record of lines that became no jobs is small, whatever comes.
func TestWhatIsKeptOfLines(t *testing.T) {
	for _, tt := range []struct {
		doc, line string
		header    []string
		n, kept   int64
	}{
		{fastDoc, `{"text":1}`, asFast, 2000, 3},
		{fastDoc, `{"text":"x","deadline_ms":600000}`, asFast, 2000, 3},
		{"", "{}", nil, MostKept + 500, MostKept},
	} {
		inAPI(t, tt.doc, func(a *api) {
			w := a.send(http.MethodPost, "/v1/jobs/batch", strings.Repeat(tt.line+"\n", int(tt.n)), append(tt.header, "Content-Type", ndJSON)...)
			b, err := a.store.Batch(a.t.Context(), w.Header().Get(wire.HeaderBatchID))
			a.must(err)
			if told := strings.Count(w.Body.String(), "\n"); int64(told) != tt.n || b.Lines < tt.kept || b.Lines > tt.kept+10 {
				t.Errorf("%s: %d lines answered, %d on record", tt.line, told, b.Lines)
			}
		})
	}
}
