package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/admission"
	"leeway/broker/config"
	"leeway/broker/wire"
	"leeway/slackgate"
)

// slowly is a body of which nothing comes for a while.
type slowly struct {
	after time.Duration
	io.Reader
}

func (s *slowly) Read(p []byte) (int, error) {
	time.Sleep(s.after) // virtual
	s.after = 0
	return s.Reader.Read(p)
}

// What a body takes to come is taken from a deadline once, in whichever form it is
// given and whichever way the job comes.
func TestUploadCountsOnce(t *testing.T) {
	const upload = 16 * time.Second
	for _, tt := range []struct{ name, path, media, head, tail string }{
		{"an instant", "/v1/jobs", "application/json", `{"text":"x",`, `"deadline_at":"AT"}`},
		{"milliseconds", "/v1/jobs", "application/json", `{"text":"x",`, `"deadline_ms":30000}`},
		{"an instant in a line", "/v1/jobs/batch", ndJSON, `{"text":"x",`, `"deadline_at":"AT"}`},
		{"milliseconds in a line", "/v1/jobs/batch", ndJSON, `{"text":"x",`, `"deadline_ms":30000}`},
		{"a chat completion's header", "/v1/chat/completions", "application/json", `{"model":"summary",`, `"messages":[{"role":"user","content":"x"}]}`},
	} {
		inAPI(t, "", func(a *api) {
			at := time.Now().Add(30 * time.Second)
			tail := strings.ReplaceAll(tt.tail, "AT", at.UTC().Format(time.RFC3339Nano))
			body := io.MultiReader(strings.NewReader(tt.head), &slowly{upload, strings.NewReader(tail)})
			ctx, gone := context.WithTimeout(context.Background(), upload+time.Second) // a chat completion waits for its end
			defer gone()
			w := a.do(ctx, http.MethodPost, tt.path, body, "Content-Type", tt.media, wire.HeaderDeadline, "30000", wire.HeaderIdempotencyKey, "k")
			jobs := a.admittedJobs()
			if len(jobs) != 1 || jobs[0].DeadlineAtMS != at.UnixMilli() || jobs[0].Admission.SlackMS != 12_000 {
				t.Errorf("%s: %d %s: %+v", tt.name, w.Code, w.Body, jobs)
			}
		})
	}
}

func TestBadInputIsRefusedByName(t *testing.T) {
	doc := "limits: {text_bytes: 100}\nclasses:\n  summary: {max_deadline_ms: 60000, max_output_tokens: 50}\n"
	job := func(field string) string { return `{"text":"x",` + field + `}` }
	deep := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	tests := []struct {
		name, body, want string
	}{
		{"unknown field", job(`"txet":1`), "invalid_field txet"},
		{"unknown field in another case", `{"Text":"x"}`, "invalid_field Text"},
		{"no text", `{}`, "invalid_field text"},
		{"null text", `{"text":null}`, "invalid_field text"},
		{"empty text", `{"text":""}`, "invalid_field text"},
		{"blank text", `{"text":" \n\t "}`, "invalid_field text"},
		{"text of 101 bytes", `{"text":"` + strings.Repeat("x", 101) + `"}`, "invalid_field text"},
		{"text of another type", `{"text":["x"]}`, "invalid_field text"},
		{"unknown class", job(`"class":"nope"`), "invalid_field class"},
		{"class of another type", job(`"class":7`), "invalid_field class"},
		{"deadline 0", job(`"deadline_ms":0`), "invalid_field deadline_ms"},
		{"deadline -0", job(`"deadline_ms":-0`), "invalid_field deadline_ms"},
		{"deadline -1", job(`"deadline_ms":-1`), "invalid_field deadline_ms"},
		{"deadline 0.3", job(`"deadline_ms":0.3`), "invalid_field deadline_ms"},
		{"deadline 15000.0", job(`"deadline_ms":15000.0`), "invalid_field deadline_ms"},
		{"deadline 1e400", job(`"deadline_ms":1e400`), "invalid_field deadline_ms"},
		{"deadline 1e3", job(`"deadline_ms":1e3`), "invalid_field deadline_ms"},
		{"deadline NaN", job(`"deadline_ms":NaN`), "invalid_json deadline_ms"},
		{"deadline soon", job(`"deadline_ms":"soon"`), "invalid_field deadline_ms"},
		{"deadline inf", job(`"deadline_ms":"inf"`), "invalid_field deadline_ms"},
		{"deadline as a string", job(`"deadline_ms":"15000"`), "invalid_field deadline_ms"},
		{"deadline true", job(`"deadline_ms":true`), "invalid_field deadline_ms"},
		{"deadline []", job(`"deadline_ms":[]`), "invalid_field deadline_ms"},
		{"largest int64", job(`"deadline_ms":9223372036854775807`), "invalid_field deadline_ms"},
		{"beyond int64", job(`"deadline_ms":9223372036854775808`), "invalid_field deadline_ms"},
		{"past the class's longest", job(`"deadline_ms":60001`), "invalid_field deadline_ms"},
		{"deadline_at past", job(`"deadline_at":"1999-12-31T23:59:59Z"`), "invalid_field deadline_at"},
		{"deadline_at now", job(`"deadline_at":"2000-01-01T00:00:00Z"`), "invalid_field deadline_at"},
		{"deadline_at without zone", job(`"deadline_at":"2000-01-01T00:00:30"`), "invalid_field deadline_at"},
		{"deadline_at far away", job(`"deadline_at":"2000-01-01T00:01:00.001Z"`), "invalid_field deadline_at"},
		{"deadline_at of year 9999", job(`"deadline_at":"9999-12-31T23:59:59Z"`), "invalid_field deadline_at"},
		{"deadline_at as a number", job(`"deadline_at":946684830`), "invalid_field deadline_at"},
		{"deadline_at empty", job(`"deadline_at":""`), "invalid_field deadline_at"},
		{"both forms", job(`"deadline_ms":15000,"deadline_at":"2000-01-01T00:00:30Z"`), "invalid_field deadline_ms"},
		{"max_output_tokens 0", job(`"max_output_tokens":0`), "invalid_field max_output_tokens"},
		{"max_output_tokens 51", job(`"max_output_tokens":51`), "invalid_field max_output_tokens"},
		{"max_output_tokens 1.5", job(`"max_output_tokens":1.5`), "invalid_field max_output_tokens"},
		{"producer of 65 bytes", job(`"producer":"` + strings.Repeat("p", 65) + `"`), "invalid_field producer"},
		{"metadata of another type", job(`"metadata":[]`), "invalid_field metadata"},
		{"metadata value of another type", job(`"metadata":{"k":1}`), "invalid_field metadata.k"},
		{"metadata of 257 bytes", job(`"metadata":{"k":"` + strings.Repeat("v", 257) + `"}`), "invalid_field metadata"},
		{"metadata of 17 entries", job(`"metadata":{` + strings.TrimSuffix(manyEntries(17), ",") + `}`), "invalid_field metadata"},
		{"metadata key twice", job(`"metadata":{"k":"1","k":"2"}`), "invalid_field metadata.k"},
		{"duplicate field", `{"text":"x","text":"y"}`, "invalid_field text"},
		{"duplicate deadline", job(`"deadline_ms":15000,"deadline_ms":1`), "invalid_field deadline_ms"},
		{"invalid UTF-8", "{\"text\":\"a\xffb\"}", "invalid_json text"},
		{"half a surrogate", `{"text":"\ud800"}`, "invalid_json text"},
		{"deep JSON", job(`"deadline_ms":` + deep), "invalid_json deadline_ms.0..."},
		{"deep unknown field", `{"a":` + deep + `}`, "invalid_field a"},
		{"empty body", ``, "invalid_json body"},
		{"not JSON", `text=x`, "invalid_json body"},
		{"an array", `[{"text":"x"}]`, "invalid_field body"},
		{"null", `null`, "invalid_field text"},
		{"cut off", `{"text":"x"`, "invalid_json body"},
		{"two documents", `{"text":"x"}{"text":"y"}`, "invalid_json body"},
	}
	inAPI(t, doc, func(a *api) {
		for _, tt := range tests {
			w := a.submit(tt.body)
			got := w.reason()
			if w.Code != http.StatusBadRequest || got != tt.want {
				t.Errorf("%s: %d %q, want 400 %q: %.300s", tt.name, w.Code, w.reason(), tt.want, w.Body)
			}
			if w.Body.Len() > 1000 {
				t.Errorf("%s: a problem document of %d bytes", tt.name, w.Body.Len())
			}
		}
		if len(a.misses()) != 0 || len(a.log.jobs(t)) != 0 {
			t.Errorf("bad input was booked: %+v, %v", a.misses(), a.log.jobs(t))
		}
	})
}

func manyEntries(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(`"k` + string(rune('a'+i)) + `":"v",`)
	}
	return b.String()
}

func TestGoodInputAtItsBounds(t *testing.T) {
	doc := "limits: {text_bytes: 100}\nclasses:\n  summary: {max_deadline_ms: 60000, max_output_tokens: 50}\n"
	for _, body := range []string{
		`{"text":"` + strings.Repeat("x", 100) + `"}`,
		`{"text":"x","deadline_ms":60000}`,
		`{"text":"x","deadline_ms":3200}`, // the reserve and paid's p95, exactly
		`{"text":"x","deadline_at":"2000-01-01T00:01:00Z"}`,
		`{"text":"x","deadline_at":"2000-01-01T02:00:30.5+02:00"}`,
		`{"text":"x","deadline_ms":null,"deadline_at":null,"max_output_tokens":null,"class":null,"metadata":null}`,
		`{"text":"x","max_output_tokens":1,"class":"summary","producer":"` + strings.Repeat("p", 64) + `"}`,
		`{"text":"x","metadata":{` + strings.TrimSuffix(manyEntries(16), ",") + `}}`,
		`{"text":"\u0000\ud83d\ude00"}`,
	} {
		inAPI(t, doc, func(a *api) {
			w := a.submit(body)
			var v wire.Verdict
			if err := json.Unmarshal(w.Body.Bytes(), &v); w.Code != http.StatusAccepted || err != nil {
				t.Fatalf("%.100s: %d %s", body, w.Code, w.Body)
			}
			if v.JobID == "" || v.Path != slackgate.Paid || v.Reason != slackgate.ReasonPaid || v.ReserveMS != 2000 ||
				w.Header().Get("Location") != "/v1/jobs/"+v.JobID || v.DeadlineAtMS <= 946684800000 || v.NeedMS.Paid == nil || *v.NeedMS.Paid != 1200 {
				t.Errorf("%s: %+v", body, v)
			}
		})
	}
}

func TestMediaTypesAndSizes(t *testing.T) {
	inAPI(t, "limits: {text_bytes: 1000}", func(a *api) {
		good := `{"text":"x"}`
		for _, tt := range []struct {
			name, path, body string
			header           []string
			status           int
			reason           string
		}{
			{"no type", "/v1/jobs", good, nil, 415, wire.ReasonMediaType},
			{"text", "/v1/jobs", good, []string{"Content-Type", "text/plain"}, 415, wire.ReasonMediaType},
			{"nonsense type", "/v1/jobs", good, []string{"Content-Type", ";;"}, 415, wire.ReasonMediaType},
			{"form", "/v1/jobs", "text=x", []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, wire.ReasonMediaType},
			{"with charset", "/v1/jobs", good, []string{"Content-Type", "application/json; charset=utf-8"}, 202, ""},
			{"in capitals", "/v1/jobs", good, []string{"Content-Type", "Application/JSON"}, 202, ""},
			{"with half a parameter", "/v1/jobs", good, []string{"Content-Type", "application/json; charset"}, 415, wire.ReasonMediaType},
			{"compressed", "/v1/jobs", good, []string{"Content-Type", asJSON, "Content-Encoding", "gzip"}, 415, wire.ReasonMediaType},
			{"identity", "/v1/jobs", good, []string{"Content-Type", asJSON, "Content-Encoding", "identity"}, 202, ""},
			{"too large", "/v1/jobs", `{"text":"` + strings.Repeat("x", 2000+config.LineOverhead) + `"}`, []string{"Content-Type", asJSON}, 413, wire.ReasonTooLarge},
			{"JSON batch", "/v1/jobs/batch", good, []string{"Content-Type", asJSON}, 415, wire.ReasonMediaType},
			{"compressed batch", "/v1/jobs/batch", good, []string{"Content-Type", ndJSON, "Content-Encoding", "br"}, 415, wire.ReasonMediaType},
		} {
			w := a.send(http.MethodPost, tt.path, tt.body, tt.header...)
			if w.Code != tt.status || w.problem.Reason != tt.reason {
				t.Errorf("%s: %d %q, want %d %q", tt.name, w.Code, w.problem.Reason, tt.status, tt.reason)
			}
		}
		// A body that never ends is read for a while, for clients that read last.
		read := &counting{}
		if w := a.do(context.Background(), http.MethodPost, "/v1/jobs", read, "Content-Type", asJSON); w.Code != 413 || read.n > 65<<20 {
			t.Errorf("an endless body: %d after %d bytes", w.Code, read.n)
		}
		// One whose length is not told is read as well.
		if w := a.do(context.Background(), http.MethodPost, "/v1/jobs", io.MultiReader(strings.NewReader(good)), "Content-Type", asJSON); w.Code != 202 {
			t.Errorf("a body without a length: %d %s", w.Code, w.Body)
		}
		// A body that breaks off is no submission, nor is one that is shorter than
		// its length says.
		cut := io.MultiReader(strings.NewReader(`{"text":"x"}`), broken{})
		if w := a.do(context.Background(), http.MethodPost, "/v1/jobs", cut, "Content-Type", asJSON); w.Code != 400 || w.problem.Reason != wire.ReasonInvalidJSON {
			t.Errorf("a broken body: %d %s", w.Code, w.Body)
		}
		short := httptest.NewRequest(http.MethodPost, ownURL+"/v1/jobs", strings.NewReader(good))
		short.Header.Set("Content-Type", asJSON)
		short.ContentLength++
		w := &answer{ResponseRecorder: httptest.NewRecorder()}
		a.ServeHTTP(w, short)
		if a.checkProblem(w); w.Code != 400 || w.problem.Reason != wire.ReasonInvalidJSON || w.problem.Detail != "the body ended early" {
			t.Errorf("a body shorter than its length: %d %s", w.Code, w.Body)
		}
	})
}

type counting struct{ n int }

func (c *counting) Read(p []byte) (int, error) {
	c.n += len(p)
	return copy(p, bytes.Repeat([]byte(" "), len(p))), nil
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// A positive deadline within the reserve is a refusal and a miss, not bad
// input; a refusal for want of slack is no miss.
func TestRefusals(t *testing.T) {
	inAPI(t, "", func(a *api) {
		for _, ms := range []string{"1", "1999", "2000"} {
			w := a.submit(`{"text":"x","producer":"p","deadline_ms":` + ms + `}`)
			if w.Code != 429 || w.problem.Reason != "reject_deadline" || w.Header().Get("Retry-After") != "" || w.problem.Verdict == nil || w.problem.Verdict.JobID != "" {
				t.Errorf("deadline %s: %d %s", ms, w.Code, w.Body)
			}
		}
		rows := a.misses()
		if len(rows) != 3 {
			t.Fatalf("misses %+v", rows)
		}
		for _, r := range rows {
			if r.Path != slackgate.Reject || r.Cause != broker.CauseNoSlack || r.Class != "summary" || r.Producer != "p" || r.SlackMS > 0 {
				t.Errorf("row %+v", r)
			}
		}
		w := a.submit(`{"text":"x","deadline_ms":2001}`)
		if v := w.problem.Verdict; w.Code != 429 || w.problem.Reason != "reject_no_slack" || v == nil || v.SlackMS != 1 || v.NeedMS.String() != "paid 1200, free 4000" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		// Where waiting helps, it says so in whole seconds, rounded up.
		for range 20 {
			w = a.submit(`{"text":"x","deadline_ms":6000}`)
		}
		if w.Code != 429 || w.Header().Get("Retry-After") == "" || w.Header().Get("Retry-After") == "0" || w.problem.Verdict.RetryAfterMS <= 0 {
			t.Errorf("a full pool: %d, Retry-After %q, %s", w.Code, w.Header().Get("Retry-After"), w.Body)
		}
		if len(a.misses()) != 3 {
			t.Error("reject_no_slack was booked as a miss")
		}
	})
	inAPI(t, "gate: {admit_paid: false, admit_free: false}", func(a *api) {
		if w := a.submit(`{"text":"x"}`); w.Code != 429 || w.problem.Reason != "reject_closed" {
			t.Errorf("closed: %d %s", w.Code, w.Body)
		}
	})
}

func TestNoWorkerIsPoolDown(t *testing.T) {
	inAPI(t, "", func(a *api) {
		time.Sleep(25 * time.Hour)
		w := a.submit(`{"text":"x"}`)
		if w.Code != 503 || w.problem.Reason != "pool_down" || w.Header().Get("Retry-After") != "1" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if r := a.send(http.MethodGet, "/readyz", ""); r.Code != 503 || !strings.Contains(r.Body.String(), "pool_down") {
			t.Errorf("readyz %d %s", r.Code, r.Body)
		}
		a.live(1, 0)
		time.Sleep(admission.TrustFor) // the state it last read may be used so long
		if w := a.submit(`{"text":"x"}`); w.Code != 202 {
			t.Errorf("with a worker: %d %s", w.Code, w.Body)
		}
	})
}

func TestRedisGone(t *testing.T) {
	for mute, trouble := range map[bool]string{false: "the store cannot be reached", true: "the store does not answer in time"} {
		inAPI(t, "", func(a *api) {
			id := a.admitted(`{"text":"x"}`)
			a.loseRedis(mute)
			// Connections from before were cut, which is another trouble: those of
			// single commands, and those of several in one.
			single := func() error { return a.store.SyncClock(context.Background()) }
			several := func() error { _, err := a.store.Get(context.Background(), id); return err }
			for _, call := range []func() error{single, several} {
				for mute && broker.TroubleOf(call()) != broker.TroubleNoAnswer {
					continue
				}
			}
			for _, r := range [][3]string{
				{"POST", "/v1/jobs", `{"text":"x"}`},
				{"GET", "/v1/jobs/" + id, ""}, {"GET", "/v1/jobs/" + id + "?wait=1s", ""}, {"DELETE", "/v1/jobs/" + id, ""},
				{"GET", "/v1/gate", ""}, {"GET", "/v1/pools", ""}, {"GET", "/v1/ledgers/spend", ""}, {"GET", "/v1/ledgers/misses", ""},
			} {
				start := time.Now()
				w := a.send(r[0], r[1], r[2], "Content-Type", asJSON)
				if w.Code != 503 || w.problem.Reason != "gate_unavailable" || w.Header().Get("Retry-After") != "1" ||
					!strings.HasPrefix(w.problem.Detail, trouble) {
					t.Errorf("%s %s: %d %s", r[0], r[1], w.Code, w.Body)
				}
				// In virtual time the bound is exact. Who waits hears of it when
				// the time is over and the store still does not answer.
				bound := 250 * time.Millisecond
				if strings.Contains(r[1], "?wait=1s") {
					bound += 1250 * time.Millisecond // another look was under way
				}
				if took := time.Since(start); took > bound {
					t.Errorf("%s %s took %v", r[0], r[1], took)
				}
			}
			w := a.send(http.MethodPost, "/v1/jobs/batch", "{\"text\":\"a\"}\n{\"text\":\"b\"}\n", "Content-Type", ndJSON)
			if w.Code != 503 || w.problem.Reason != "gate_unavailable" {
				t.Errorf("batch: %d %s", w.Code, w.Body)
			}
			if w := a.send(http.MethodGet, "/livez", ""); w.Code != 200 {
				t.Errorf("livez %d", w.Code)
			}
			if w := a.send(http.MethodGet, "/readyz", ""); w.Code != 503 || !strings.Contains(w.Body.String(), trouble) {
				t.Errorf("readyz %d %s", w.Code, w.Body)
			}
			// The submission has its line, and nobody is left in the dark about
			// why.
			lines := a.log.jobs(t)
			if len(lines) != 1 {
				t.Fatalf("log lines %v", lines)
			}
			for _, l := range lines {
				if l["reason"] != "gate_unavailable" || l["outcome"] != "rejected" {
					t.Errorf("line %v", l)
				}
			}
			a.findRedis()
			if w := a.submit(`{"text":"x"}`); w.Code != 202 {
				t.Errorf("afterwards: %d %s", w.Code, w.Body)
			}
			time.Sleep(ReadyFor)
			if w := a.send(http.MethodGet, "/readyz", ""); w.Code != 200 {
				t.Errorf("readyz afterwards: %d %s", w.Code, w.Body)
			}
		})
	}
}

func TestBackgroundFailureShowsInReadyz(t *testing.T) {
	for name, loop := range map[string]func(context.Context) error{
		"panic": func(context.Context) error { panic("boom: a secret") },
		"error": func(context.Context) error { return errors.New("boom: a secret") },
	} {
		inAPI(t, "", func(a *api) {
			if w := a.send(http.MethodGet, "/readyz", ""); w.Code != 200 || !strings.Contains(w.Body.String(), `"status":"ready"`) {
				t.Fatalf("readyz %d %s", w.Code, w.Body)
			}
			a.group.Go("loop", loop)
			for a.group.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(ReadyFor)
			w := a.send(http.MethodGet, "/readyz", "")
			if w.Code != 503 || !strings.Contains(w.Body.String(), "background loop has failed") || strings.Contains(w.Body.String(), "secret") {
				t.Errorf("%s: readyz %d %s", name, w.Code, w.Body)
			}
			if w := a.send(http.MethodGet, "/livez", ""); w.Code != 200 {
				t.Errorf("livez %d", w.Code)
			}
		})
	}
}

// However many ask whether it is ready, the store is asked once in a while.
func TestReadyzIsShared(t *testing.T) {
	inAPI(t, "", func(a *api) {
		was := a.redis.CommandCount()
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() {
				if w := a.send(http.MethodGet, "/readyz", ""); w.Code != http.StatusOK {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		}
		all.Wait()
		if n := a.redis.CommandCount() - was; n > 50 {
			t.Errorf("the store was asked %d times", n)
		}
	})
}

// A page that a browser was led to may not reach an API without keys under its own
// name.
func TestForeignHosts(t *testing.T) {
	const keyed = "access: {oncall: [{name: a, key_sha256: "
	for _, tt := range []struct {
		doc, host string
		want      int
	}{
		{"", "localhost:8080", 200}, {"", "127.0.0.1:8080", 200}, {"", "[::1]:8080", 200}, {"", "::1", 200}, {"", "", 200},
		{"", "evil.example:8080", 403}, {"", "localhost.evil.example", 403}, {"", "127.0.0.1.evil.example", 403}, {"", "192.0.2.1", 403},
		{"access: {open: true}", "leeway.example", 200},
		{keyed + hashed("k") + "}]}", "leeway.example", 200},
	} {
		inAPI(t, tt.doc, func(a *api) {
			req := httptest.NewRequestWithContext(context.Background(), http.MethodGet, ownURL+"/v1/pools", nil)
			req.Host = tt.host
			req.Header.Set("Authorization", "Bearer k")
			w := httptest.NewRecorder()
			a.ServeHTTP(w, req)
			if w.Code != tt.want {
				t.Errorf("%q: %d %s", tt.host, w.Code, w.Body)
			}
		})
	}
}
