package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/wire"
	"leeway/slackgate"
)

// chat makes a chat completion and returns the response and its error object.
func (a *api) chat(ctx context.Context, body string, header ...string) (*httptest.ResponseRecorder, apiError) {
	a.t.Helper()
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, ownURL+routeChat, strings.NewReader(body))
	req.Header.Set("Content-Type", asJSON)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	a.ServeHTTP(w, req)
	var e apiErrorBody
	if w.Code >= 400 {
		if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Error.Message == "" || e.Error.Type == "" || e.Error.Code == "" {
			a.t.Errorf("status %d with %s", w.Code, w.Body)
		}
	}
	return w, e.Error
}

func TestChatInput(t *testing.T) {
	doc := "limits: {text_bytes: 100}\nclasses:\n  summary: {max_deadline_ms: 60000, max_output_tokens: 50}\n"
	const messages = `"messages":[{"role":"user","content":"x"}]`
	with := func(fields string) string { return `{"model":"summary",` + messages + fields + `}` }
	say := func(list string) string { return `{"model":"summary","messages":[` + list + `]}` }
	inAPI(t, doc, func(a *api) {
		for _, tt := range []struct {
			name, body, deadline string
			status               int
			code, param          string
		}{
			{"no model", `{` + messages + `}`, "", 400, wire.ReasonInvalidField, "model"},
			{"unknown model", `{"model":"gpt",` + messages + `}`, "", 404, wire.ReasonNoModel, "model"},
			{"no messages", `{"model":"summary"}`, "", 400, wire.ReasonInvalidField, "messages"},
			{"too many messages", say(strings.Repeat(`{"role":"user","content":"x"},`, maxMessages) + `{"role":"user","content":"x"}`), "", 400, wire.ReasonInvalidField, "messages"},
			{"no user message", say(`{"role":"system","content":"x"}`), "", 400, wire.ReasonInvalidField, "messages"},
			{"blank text", say(`{"role":"user","content":" "}`), "", 400, wire.ReasonInvalidField, "messages"},
			{"text of 101 bytes", say(`{"role":"user","content":"` + strings.Repeat("x", 101) + `"}`), "", 400, wire.ReasonInvalidField, "messages"},
			{"a conversation", say(`{"role":"user","content":"x"},{"role":"assistant","content":"y"}`), "", 400, wire.ReasonInvalidField, "messages.1.role"},
			{"an unknown role", say(`{"role":"narrator","content":"x"}`), "", 400, wire.ReasonInvalidField, "messages.0.role"},
			{"an image", say(`{"role":"user","content":[{"type":"image_url"}]}`), "", 400, wire.ReasonInvalidField, "messages.0.content"},
			{"content of another type", say(`{"role":"user","content":7}`), "", 400, wire.ReasonInvalidField, "messages.0.content"},
			{"no content", say(`{"role":"user"}`), "", 400, wire.ReasonInvalidField, "messages.0.content"},
			{"a long instruction", say(`{"role":"system","content":"` + strings.Repeat("x", MaxInstructionBytes+1) + `"},{"role":"user","content":"x"}`), "", 400, wire.ReasonInvalidField, "messages"},
			{"two answers", with(`,"n":2`), "", 400, wire.ReasonInvalidField, "n"},
			{"tools", with(`,"tools":[{}]`), "", 400, wire.ReasonInvalidField, "tools"},
			{"functions", with(`,"functions":[{}]`), "", 400, wire.ReasonInvalidField, "functions"},
			{"logprobs", with(`,"logprobs":true`), "", 400, wire.ReasonInvalidField, "logprobs"},
			{"JSON answer", with(`,"response_format":{"type":"json_object"}`), "", 400, wire.ReasonInvalidField, "response_format"},
			{"relay", with(`,"relay":"half"`), "", 400, wire.ReasonInvalidField, "relay"},
			{"audio", with(`,"modalities":["text","audio"]`), "", 400, wire.ReasonInvalidField, "modalities"},
			{"no tokens", with(`,"max_tokens":0`), "", 400, wire.ReasonInvalidField, "max_completion_tokens"},
			{"metadata of numbers", with(`,"metadata":{"a":1}`), "", 400, wire.ReasonInvalidField, "metadata.a"},
			{"no JSON", `{"model":`, "", 400, wire.ReasonInvalidJSON, "model"},
			{"a field twice", with(`,"model":"summary"`), "", 400, wire.ReasonInvalidField, "model"},
			{"invalid UTF-8", say("{\"role\":\"user\",\"content\":\"\xff\"}"), "", 400, wire.ReasonInvalidJSON, "messages.0..."},
			{"deadline soon", with(""), "soon", 400, wire.ReasonInvalidField, wire.HeaderDeadline},
			{"deadline 0", with(""), "0", 400, wire.ReasonInvalidField, wire.HeaderDeadline},
			{"deadline 1e3", with(""), "1e3", 400, wire.ReasonInvalidField, wire.HeaderDeadline},
			{"deadline past the longest", with(""), "60001", 400, wire.ReasonInvalidField, wire.HeaderDeadline},
			{"deadline within the reserve", with(""), "2000", 429, "reject_deadline", ""},
		} {
			w, e := a.chat(context.Background(), tt.body, wire.HeaderDeadline, tt.deadline)
			param := ""
			if e.Param != nil {
				param = *e.Param
			}
			if w.Code != tt.status || e.Code != tt.code || param != tt.param {
				t.Errorf("%s: %d %s %s %q: %s; want %d %s %q", tt.name, w.Code, e.Type, e.Code, param, e.Message, tt.status, tt.code, tt.param)
			}
			if e.Code != wire.ReasonInvalidJSON && !strings.Contains(e.Message, param) { // many clients show the message alone
				t.Errorf("%s: %q does not name %s", tt.name, e.Message, param)
			}
			if retry := w.Header().Get("X-Should-Retry"); (retry == "false") != (tt.status == 429) {
				t.Errorf("%s: X-Should-Retry %q", tt.name, retry)
			}
		}
		if len(a.misses()) != 1 { // that of the job without slack
			t.Errorf("misses %+v", a.misses())
		}
	})
}

// What clients send besides is not for us, and a limit above the class's is
// kept by the class's.
func TestChatBecomesAJob(t *testing.T) {
	inAPI(t, "classes:\n  summary: {max_output_tokens: 50}\n", func(a *api) {
		ctx, leave := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.chat(ctx, `{"model":"summary","temperature":0.3,"max_tokens":4000,"max_completion_tokens":60,"user":"u","store":true,"stream":null,
				"stream_options":null,"response_format":{"type":"text"},"metadata":{"run":"7"},"messages":[
				{"role":"developer","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
				{"role":"user","name":"n","content":"c"},{"role":"system","content":"In French."}]}`, wire.HeaderDeadline, "20000")
		}()
		synctest.Wait()
		c := a.claim()
		if c.Text != "a\n\nb\n\nc" || c.Instruction != "Be brief.\n\nIn French." || c.MaxOutputTokens != 50 || c.Metadata["run"] != "7" ||
			c.DeadlineAtMS != c.AcceptedAtMS+20_000 || c.Relay != "" {
			t.Errorf("%+v", c)
		}
		leave()
		<-done
		if lease, err := a.store.Renew(context.Background(), c, time.Second); err != nil || lease != 2 {
			t.Errorf("lease %d, %v: the job of a client that left is not taken back", lease, err)
		}
		// Nothing of it is kept with the record, which outlives the text.
		for _, key := range a.redis.Keys() {
			if strings.HasSuffix(key, ":job:"+c.ID) && strings.Contains(a.redis.HGet(key, "spec"), "French") {
				t.Errorf("the instruction stands in the record")
			}
		}
	})
}

// streamed is a stream under way on a recorder, asked for with more fields.
func (a *api) streamed(fields string, header ...string) (w *httptest.ResponseRecorder, done chan struct{}) {
	done = make(chan struct{})
	w = httptest.NewRecorder()
	req := httptest.NewRequest(http.MethodPost, ownURL+routeChat, strings.NewReader(`{"model":"summary","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"x"}]`+fields+`}`))
	req.Header.Set("Content-Type", asJSON)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	go func() {
		defer close(done)
		a.ServeHTTP(w, req)
	}()
	synctest.Wait()
	return w, done
}

// pieces are the texts of a stream's chunks, and the error it ends with.
func pieces(t *testing.T, w *httptest.ResponseRecorder) (texts []string, end string) {
	t.Helper()
	for line := range strings.Lines(w.Body.String()) {
		raw, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok {
			continue
		}
		var chunk struct {
			chatCompletion
			apiErrorBody
		}
		switch err := json.Unmarshal([]byte(raw), &chunk); {
		case raw == "[DONE]":
			end = "done"
		case err != nil:
			t.Errorf("%q: %v", raw, err)
		case chunk.Error.Code != "":
			end = chunk.Error.Code
		case len(chunk.Choices) > 0 && chunk.Choices[0].Delta.Content != "":
			texts = append(texts, chunk.Choices[0].Delta.Content)
		}
	}
	return texts, end
}

func TestStreamMendsWhatWasLost(t *testing.T) {
	for _, tt := range []struct {
		name   string
		pieces []broker.Piece
		answer string
		want   []string
		end    string
	}{
		{"nothing relayed", nil, "a b c", []string{"a b c"}, "done"},
		{"all relayed", []broker.Piece{{At: 0, Text: "a "}, {At: 2, Text: "b c"}}, "a b c", []string{"a ", "b c"}, "done"},
		{"the end lost", []broker.Piece{{At: 0, Text: "a "}}, "a b c", []string{"a ", "b c"}, "done"},
		{"one lost in between", []broker.Piece{{At: 0, Text: "a "}, {At: 4, Text: "c"}}, "a b c", []string{"a ", "b c"}, "done"},
		{"the beginning lost", []broker.Piece{{At: 2, Text: "b "}}, "a b c", []string{"a b c"}, "done"},
		{"one twice", []broker.Piece{{At: 0, Text: "a "}, {At: 0, Text: "a "}}, "a b c", []string{"a ", "b c"}, "done"},
		{"another generation", []broker.Piece{{At: 0, Text: "a "}, {Fence: 9, At: 2, Text: "x "}}, "a b c", []string{"a ", "b c"}, "done"},
		{"another answer", []broker.Piece{{At: 0, Text: "a "}}, "x y z", []string{"a "}, wire.ReasonAnswerChanged},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inAPI(t, "", func(a *api) {
				w, done := a.streamed("")
				c := a.claim()
				if c.Relay != a.replica {
					t.Fatalf("relay to %q", c.Relay)
				}
				for _, p := range tt.pieces {
					p.JobID = c.ID
					p.Fence += c.Fence
					a.must(a.store.Relay(context.Background(), c.Relay, &p))
					synctest.Wait()
				}
				_, err := a.store.Finish(context.Background(), c, &broker.Finish{
					Outcome: broker.OutcomeUsable, Answer: tt.answer, FirstByteMS: 1, FinishReason: "stop",
					Usage: &broker.Usage{InputTokens: 3, OutputTokens: 4, Known: broker.KnownReported},
				})
				a.must(err)
				<-done
				got, end := pieces(t, w)
				if strings.Join(got, "|") != strings.Join(tt.want, "|") || end != tt.end {
					t.Errorf("got %q, %s; want %q, %s", got, end, tt.want, tt.end)
				}
				if tt.end == "done" && !strings.Contains(w.Body.String(), `"total_tokens":7`) {
					t.Errorf("no usage in %s", w.Body)
				}
			})
		})
	}
}

// A stream that is relayed whole keeps its connection with comments until the
// answer is there. What the request says goes before what its class says.
func TestStreamIsRelayedWhole(t *testing.T) {
	for _, tt := range []struct {
		class, fields string
		whole         bool
	}{
		{"{}", "", false},
		{"{}", `,"relay":"whole"`, true},
		{"{relay: live}", `,"relay":null`, false},
		{"{relay: whole}", "", true},
		{"{relay: whole}", `,"relay":"live"`, false},
	} {
		t.Run(tt.class+tt.fields, func(t *testing.T) {
			inAPI(t, "classes:\n  summary: "+tt.class+"\n", func(a *api) {
				w, done := a.streamed(tt.fields, wire.HeaderDeadline, "60000")
				c := a.claim()
				if (c.Relay == "") != tt.whole {
					t.Errorf("relay to %q", c.Relay)
				}
				time.Sleep(2*heartbeat + time.Second)
				synctest.Wait()
				if w.Code != http.StatusOK || w.Header().Get(wire.HeaderPath) != "paid" || strings.Count(w.Body.String(), "\n:\n") != 2 || strings.Contains(w.Body.String(), "data:") {
					t.Errorf("%d %v %q before the answer", w.Code, w.Header(), w.Body)
				}
				a.finish(c)
				<-done
				if got, end := pieces(t, w); strings.Join(got, "|") != "the answer" || end != "done" {
					t.Errorf("got %q, %s", got, end)
				}
			})
		})
	}
}

// Outcomes without an answer are errors that no client retries by itself.
func TestChatWithoutAnswer(t *testing.T) {
	for outcome, status := range map[broker.Outcome]int{
		broker.OutcomeLate: 504, broker.OutcomeExpired: 504, broker.OutcomeEmpty: 502, broker.OutcomeTruncated: 502,
		broker.OutcomeFailed: 502, broker.OutcomeCancelled: 409,
	} {
		inAPI(t, "", func(a *api) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				w, e := a.chat(context.Background(), `{"model":"summary","messages":[{"role":"user","content":"x"}]}`)
				if w.Code != status || e.Code != string(outcome) || w.Header().Get("X-Should-Retry") != "false" || w.Header().Get(wire.HeaderPath) != "paid" {
					t.Errorf("%s: %d %+v %v", outcome, w.Code, e, w.Header())
				}
			}()
			synctest.Wait()
			c := a.claim()
			f := broker.Finish{Outcome: outcome, FirstByteMS: -1}
			if outcome.Miss() {
				f.Cause = broker.CauseFailed
			}
			_, err := a.store.Finish(context.Background(), c, &f)
			a.must(err)
			<-done
		})
	}
}

// With the store away a completion goes on waiting, and gives up some time
// after the job's deadline.
func TestChatWithTheStoreAway(t *testing.T) {
	inAPI(t, "", func(a *api) {
		begin := time.Now()
		_, done := a.streamed("", wire.HeaderDeadline, "8000")
		_ = a.claim()
		a.loseRedis(false)
		<-done
		if took := time.Since(begin); took < 18*time.Second || took > 21*time.Second {
			t.Errorf("gave up after %v", took)
		}
		a.findRedis()
	})
}

func TestStreamsAreBounded(t *testing.T) {
	inAPI(t, "", func(a *api) {
		id := a.admitted(`{"text":"x"}`)
		hog := &hold{of: a.streams, who: "192.0.2.1"} // where these requests come from
		for hog.take(context.Background(), 1, 0) {
			continue
		}
		w := a.send(http.MethodGet, "/v1/jobs/"+id+"/events", "")
		if w.Code != 503 || w.problem.Reason != wire.ReasonTooManyStreams {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		wc, e := a.chat(context.Background(), `{"model":"summary","stream":true,"messages":[{"role":"user","content":"x"}]}`)
		if wc.Code != 503 || e.Code != wire.ReasonTooManyStreams || wc.Header().Get("Retry-After") != "1" || wc.Header().Get("X-Should-Retry") != "" {
			t.Errorf("%d %+v %v", wc.Code, e, wc.Header())
		}
		hog.release()
		a.redis.FlushAll()
		if w := a.send(http.MethodGet, "/v1/jobs/"+id+"/events", ""); w.Code != 404 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if a.streams.free != MaxStreams || len(a.streams.by) > 0 {
			t.Errorf("%d streams free, held by %v", a.streams.free, a.streams.by)
		}
	})
}

// A long Retry-After is not left to clients that would not wait for it.
func TestRetryIsLeftToClients(t *testing.T) {
	inAPI(t, "", func(a *api) {
		for _, tt := range []struct {
			retryMS int64
			should  string
		}{{0, "false"}, {1000, ""}, {59_000, ""}, {59_001, "false"}, {600_000, "false"}} {
			rec := httptest.NewRecorder()
			c := a.echo.NewContext(httptest.NewRequest(http.MethodPost, ownURL+routeChat, http.NoBody), rec)
			p := refusal(&broker.Verdict{Result: slackgate.Result{Reason: slackgate.ReasonNoSlack, RetryAfterMS: tt.retryMS}})
			a.must(writeAPIError(c, p))
			want := ""
			if tt.retryMS > 0 {
				want = strconv.FormatInt((tt.retryMS+999)/1000, 10)
			}
			if got := rec.Header().Get("X-Should-Retry"); got != tt.should || rec.Header().Get("Retry-After") != want {
				t.Errorf("%d ms: X-Should-Retry %q, Retry-After %q", tt.retryMS, got, rec.Header().Get("Retry-After"))
			}
		}
	})
}

func TestDeleteOnly(t *testing.T) {
	inAPI(t, "", func(a *api) {
		del := func(id, only string, status int, want string) {
			t.Helper()
			if w := a.send(http.MethodDelete, "/v1/jobs/"+id+"?only="+only, ""); w.Code != status || !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s: %d %s; want %d %s", only, w.Code, w.Body, status, want)
			}
		}
		id := a.admitted(`{"text":"x","deadline_ms":600000}`)
		del(id, "answer", 400, `"field":"only"`)
		del(id, "delete", 409, wire.ReasonOrder)
		c := a.claim()
		del(id, "delete", 409, wire.ReasonOrder)
		a.finish(c)
		del(id, "cancel", 409, wire.ReasonOrder)
		if v, err := a.store.Get(context.Background(), id); err != nil || v.Answer == "" {
			t.Errorf("%+v, %v", v, err)
		}
		del(id, "delete", 200, `"deleted"`)
		del("nobody", "delete", 404, wire.ReasonNotFound)
		del("nobody", "cancel", 404, wire.ReasonNotFound)
	})
}

// A subscriber that does not read loses messages, and nobody waits for it.
func TestSlowSubscriberWaitsAlone(t *testing.T) {
	s := newSubscribers[int]()
	slow, doneSlow := s.listen("j", 1)
	quick, doneQuick := s.listen("j", 8)
	for n := range 5 {
		s.tell("j", n)
		s.tell("other", n)
	}
	if len(slow) != 1 || len(quick) != 5 || <-slow != 0 {
		t.Errorf("%d and %d messages", len(slow), len(quick))
	}
	doneSlow()
	doneQuick()
	if len(s.byJob) != 0 {
		t.Errorf("%d jobs are left", len(s.byJob))
	}
}

// FuzzDecodeChat: whatever comes in is words within their bounds or an error
// that becomes a 400.
func FuzzDecodeChat(f *testing.F) {
	for _, s := range []string{
		`{"model":"summary","messages":[{"role":"user","content":"x"}]}`, `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]}`,
		`{"model":"m","messages":[{"role":"system","content":null}],"n":1,"stream_options":null}`, `{"model":7}`, `[`, `null`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := decodeChat(body)
		var text, instruction string
		if err == nil {
			text, instruction, err = r.words()
		}
		if err != nil {
			if p := asProblem(err); p.Status != 400 || p.Field == "" || len(p.Detail) > 600 {
				t.Fatalf("%q: %+v from %v", body, p, err)
			}
			return
		}
		if len(instruction) > MaxInstructionBytes || len(text) > len(body)*3 {
			t.Fatalf("%q: %d bytes of text, %d of instruction", body, len(text), len(instruction))
		}
	})
}
