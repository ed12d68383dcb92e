package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker/config"
	"leeway/broker/wire"
)

// A submission under a bound key is its job, also when its instant has passed
// since. Another body is judged by itself.
func TestKeyOutlivesItsDeadline(t *testing.T) {
	inAPI(t, "", func(a *api) {
		a.must(a.store.SyncClock(a.t.Context()))
		at := time.UnixMilli(a.store.NowMS() + 10_000).UTC().Format(time.RFC3339Nano)
		body := fmt.Sprintf(`{"text":"x","deadline_at":%q,"producer":"p"}`, at)
		post := func(body, key string) (*answer, string) {
			w := a.send(http.MethodPost, "/v1/jobs", body, "Content-Type", asJSON, wire.HeaderIdempotencyKey, key)
			var v wire.Verdict
			a.must(json.Unmarshal(w.Body.Bytes(), &v))
			return w, v.JobID
		}
		first, id := post(body, "k")
		line := fmt.Sprintf(`{"text":"x","deadline_at":%q,"custom_id":"one"}`, at)
		batch := a.send(http.MethodPost, "/v1/jobs/batch", line, "Content-Type", ndJSON)
		time.Sleep(20 * time.Second)
		again, same := post(body, "k")
		if first.Code != http.StatusAccepted || again.Code != http.StatusOK || same != id || again.Header().Get("Location") != "/v1/jobs/"+id ||
			again.Body.String() != firstAsRepeated(t, first.Body.Bytes(), again.Body.Bytes()) {
			t.Errorf("%d %s, then %d %s", first.Code, first.Body, again.Code, again.Body)
		}
		for what, w := range map[string]*answer{
			"another body":     func() *answer { w, _ := post(strings.Replace(body, `"x"`, `"y"`, 1), "k"); return w }(),
			"another producer": func() *answer { w, _ := post(strings.Replace(body, `"p"`, `"q"`, 1), "k"); return w }(),
			"another key":      func() *answer { w, _ := post(body, "l"); return w }(),
			"no key":           a.submit(body),
		} {
			if w.Code != http.StatusBadRequest || w.reason() != wire.ReasonInvalidField+" deadline_at" {
				t.Errorf("%s: %d %s", what, w.Code, w.Body)
			}
		}
		to := "/v1/batches/" + batch.Header().Get(wire.HeaderBatchID)
		repeated := a.send(http.MethodPost, to, line, "Content-Type", ndJSON)
		var one, two wire.BatchLine
		a.must(json.Unmarshal(batch.Body.Bytes(), &one))
		a.must(json.Unmarshal(repeated.Body.Bytes(), &two))
		if one.Status != 202 || two.Status != 200 || two.Error != nil || two.JobID != one.JobID || two.CustomID != "one" {
			t.Errorf("%s, then %s", batch.Body, repeated.Body)
		}
		var b wire.Batch
		a.must(json.Unmarshal(a.send(http.MethodGet, to, "").Body.Bytes(), &b))
		if b.Lines != 1 || b.Admitted != 1 || b.Invalid != 0 {
			t.Errorf("%+v", b)
		}
		// Once the record has lapsed the key names nothing.
		a.redis.FlushAll()
		a.live(2, 1)
		if w, _ := post(body, "k"); w.Code != http.StatusBadRequest {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// firstAsRepeated is the first verdict with what a repetition leaves out: the
// numbers of the pool that did not take the job.
func firstAsRepeated(t *testing.T, first, again []byte) string {
	t.Helper()
	var a, b wire.Verdict
	if err := json.Unmarshal(first, &a); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(again, &b); err != nil {
		t.Fatal(err)
	}
	a.NeedMS, a.QueueAgeMS = b.NeedMS, b.QueueAgeMS
	raw, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw) + "\n"
}

// A chat completion under a bound key is its job, also when its class has been
// taken out of the configuration since. Another body is judged by itself.
func TestChatKeyOutlivesItsClass(t *testing.T) {
	const doc = "classes:\n  gone: {max_output_tokens: 50}\n  summary: {}\ndefault_class: summary\n"
	inAPI(t, doc, func(a *api) {
		const body = `{"model":"gone","messages":[{"role":"user","content":"x"}]}`
		chat := func(body string, header ...string) *httptest.ResponseRecorder {
			w, _ := a.chat(a.t.Context(), body, header...)
			return w
		}
		const key = wire.HeaderIdempotencyKey
		var first *httptest.ResponseRecorder
		done := make(chan struct{})
		go func() {
			defer close(done)
			first = chat(body, key, "k")
		}()
		synctest.Wait()
		c := a.claim()
		a.finish(c)
		<-done
		cfg, err := config.Parse([]byte(strings.Replace(doc, "  gone: {max_output_tokens: 50}\n", "", 1)))
		a.must(err)
		a.cfg = cfg
		again := chat(body, key, "k")
		if first.Code != http.StatusOK || again.Code != http.StatusOK || again.Body.String() != first.Body.String() {
			t.Errorf("%d %s, then %d %s", first.Code, first.Body, again.Code, again.Body)
		}
		streamed := chat(strings.Replace(body, `{`, `{"stream":true,`, 1), key, "k")
		for what, w := range map[string]*httptest.ResponseRecorder{
			"another body": chat(strings.Replace(body, `"x"`, `"y"`, 1), key, "k"), "another key": chat(body, key, "l"),
			"no key": chat(body), "streamed, which is another body": streamed,
		} {
			if w.Code != http.StatusNotFound {
				t.Errorf("%s: %d %s", what, w.Code, w.Body)
			}
		}
		if w := chat(body, key, " "); w.Code != http.StatusNotFound {
			t.Errorf("a bad key: %d %s", w.Code, w.Body)
		}
	})
}

// The same, streamed while the job runs: the repetition waits for its end and
// answers as the first did.
func TestStreamedChatKeyOutlivesItsClass(t *testing.T) {
	const doc = "classes:\n  gone: {max_output_tokens: 50}\n  summary: {}\ndefault_class: summary\n"
	inAPI(t, doc, func(a *api) {
		const body = `{"model":"gone","stream":true,"messages":[{"role":"user","content":"x"}]}`
		answers := make(chan string, 2)
		chat := func() {
			w := a.send(http.MethodPost, routeChat, body, "Content-Type", asJSON, wire.HeaderIdempotencyKey, "k")
			answers <- fmt.Sprint(w.Code, w.Body)
		}
		go chat()
		synctest.Wait()
		c := a.claim()
		cfg, err := config.Parse([]byte(strings.Replace(doc, "  gone: {max_output_tokens: 50}\n", "", 1)))
		a.must(err)
		a.cfg = cfg
		go chat()
		synctest.Wait()
		a.finish(c)
		one, two := <-answers, <-answers
		if one != two || !strings.HasPrefix(one, "200") || !strings.Contains(one, "[DONE]") {
			t.Errorf("%s\nthen\n%s", one, two)
		}
	})
}
