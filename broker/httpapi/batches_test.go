package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/wire"
)

// sent is a batch as it was answered.
type sent struct {
	id    string
	lines []wire.BatchLine
}

func (s *sent) statuses() (out []int) {
	for _, l := range s.lines {
		out = append(out, l.Status)
	}
	return out
}

func (a *api) sendLines(path string, lines []string, header ...string) sent {
	a.t.Helper()
	return a.sendBody(path, strings.NewReader(strings.Join(lines, "\n")), header...)
}

func (a *api) sendBody(path string, body io.Reader, header ...string) sent {
	a.t.Helper()
	w := a.do(context.Background(), http.MethodPost, path, body, append(header, "Content-Type", ndJSON)...)
	if w.Code != http.StatusOK {
		a.t.Fatalf("%s: %d %s", path, w.Code, w.Body)
	}
	out := sent{id: w.Header().Get(wire.HeaderBatchID)}
	for l := range bytes.Lines(w.Body.Bytes()) {
		var v wire.BatchLine
		a.must(json.Unmarshal(l, &v))
		out.lines = append(out.lines, v)
	}
	return out
}

func (a *api) read(path string, into any) {
	a.t.Helper()
	w := a.send(http.MethodGet, path, "")
	if w.Code != http.StatusOK {
		a.t.Fatalf("%s: %d %s", path, w.Code, w.Body)
	}
	a.must(json.Unmarshal(w.Body.Bytes(), into))
}

// pages reads all lines of a batch, limit at a time.
func (a *api) pages(id string, limit int, filter string) (lines []*wire.LineView) {
	a.t.Helper()
	for cursor := "0"; cursor != ""; {
		var p wire.LinePage
		a.read(fmt.Sprintf("/v1/batches/%s/lines?limit=%d&cursor=%s%s", id, limit, cursor, filter), &p)
		lines, cursor = append(lines, p.Lines...), p.Next
	}
	return lines
}

func (a *api) results(id, query string) (out []wire.ResultLine) {
	a.t.Helper()
	w := a.send(http.MethodGet, "/v1/batches/"+id+"/results"+query, "")
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != ndJSON {
		a.t.Fatalf("results: %d %s", w.Code, w.Body)
	}
	for l := range bytes.Lines(w.Body.Bytes()) {
		var r wire.ResultLine
		a.must(json.Unmarshal(l, &r))
		out = append(out, r)
	}
	return out
}

// progress reads a batch and holds its counts against its lines.
func (a *api) progress(id string) *wire.Batch {
	a.t.Helper()
	var b wire.Batch
	a.read("/v1/batches/"+id, &b)
	verdicts, outcomes, pending := map[string]int64{}, map[broker.Outcome]int64{}, int64(0)
	lines := a.pages(id, 3, "")
	for _, l := range lines {
		switch {
		case l.Error != nil:
			verdicts[l.Error.Reason]++
		default:
			verdicts[l.Path.String()]++
			if l.Job.State == broker.StateDone {
				outcomes[l.Job.Outcome]++
			} else {
				pending++
			}
		}
	}
	if !maps.Equal(verdicts, b.Verdicts) || !maps.Equal(outcomes, b.Outcomes) || b.Pending != pending || b.Lines != int64(len(lines)) ||
		b.Admitted+b.Refused+b.Invalid != b.Lines {
		a.t.Errorf("batch %+v has lines %v, outcomes %v, %d pending", b, verdicts, outcomes, pending)
	}
	return &b
}

// finish ends the most urgent waiting job.
func (a *api) endNext(f *broker.Finish) {
	a.t.Helper()
	_, err := a.store.Finish(context.Background(), a.claim(), f)
	a.must(err)
}

func usable(answer string) *broker.Finish {
	return &broker.Finish{Outcome: broker.OutcomeUsable, Answer: answer, FirstByteMS: 1}
}

// Its lines are written in the millisecond of its opening. What stays of it in the
// store is the harness's to see.
func TestBatchOfOneBadLine(t *testing.T) {
	inAPI(t, "", func(a *api) {
		s := a.sendLines("/v1/jobs/batch", []string{`not json`})
		if b := a.progress(s.id); b.Lines != 1 || b.Invalid != 1 {
			t.Errorf("%+v", b)
		}
	})
}

func TestLifeOfABatch(t *testing.T) {
	inAPI(t, "", func(a *api) {
		s := a.sendLines("/v1/jobs/batch", []string{
			`{"text":"a","custom_id":"a","deadline_ms":600000}`, `{"txet":"b","custom_id":"b"}`, "", `{"text":"c","deadline_ms":600001}`,
			`{"text":"d","custom_id":"d","deadline_ms":1}`, `{"text":"e","custom_id":"e","deadline_ms":600002}`,
		})
		if got := s.statuses(); !slices.Equal(got, []int{202, 400, 202, 429, 202}) {
			t.Fatalf("%v", got)
		}
		b := a.progress(s.id)
		if b.Status != wire.BatchInProgress || b.Lines != 5 || b.Admitted != 3 || b.Refused != 1 || b.Invalid != 1 || b.Pending != 3 {
			t.Errorf("%+v", b)
		}
		lines := a.pages(s.id, 2, "")
		for i, want := range []string{"1 a", "2 b", "4 ", "5 d", "6 e"} {
			if l := lines[i]; fmt.Sprint(l.Line, " ", l.CustomID) != want || l.Status != s.lines[i].Status || l.Job != nil && l.Job.BatchID != s.id {
				t.Errorf("line %d: %+v", i, l)
			}
		}
		if l := a.pages(s.id, 2, "&verdict=refused"); len(l) != 1 || l[0].CustomID != "d" || l[0].Error.Reason != "reject_deadline" || l[0].Error.Verdict == nil {
			t.Errorf("refused: %+v", l)
		}
		if l := a.pages(s.id, 2, "&verdict=invalid"); len(l) != 1 || l[0].Line != 2 || l[0].Error.Field != "txet" {
			t.Errorf("invalid: %+v", l)
		}

		if got := a.results(s.id, ""); len(got) != 0 {
			t.Errorf("results before any end: %+v", got)
		}
		a.endNext(usable("answer a"))
		a.endNext(&broker.Finish{Outcome: broker.OutcomeEmpty, Cause: broker.CauseEmpty, FirstByteMS: -1})
		got := a.results(s.id, "")
		if len(got) != 2 || got[0].CustomID != "a" || got[0].Job.Answer != "answer a" || got[1].Line != 4 || got[1].Job.Outcome != broker.OutcomeEmpty {
			t.Fatalf("%+v", got)
		}
		// The next one is waited for.
		cursor := fmt.Sprint(got[1].NextCursor)
		time.AfterFunc(3*time.Second, func() { a.endNext(usable("answer e")) })
		start := time.Now()
		got = a.results(s.id, "?wait=30s&cursor="+cursor)
		if took := time.Since(start); len(got) != 1 || got[0].CustomID != "e" || took < 3*time.Second || took > 4*time.Second {
			t.Errorf("%+v after %v", got, took)
		}
		if got := a.results(s.id, "?outcome=usable"); len(got) != 2 || got[1].NextCursor != 3 {
			t.Errorf("usable: %+v", got)
		}
		// There is nothing more to wait for.
		start = time.Now()
		if got := a.results(s.id, "?wait=30s&cursor=3"); len(got) != 0 || time.Since(start) > time.Second {
			t.Errorf("%+v after %v", got, time.Since(start))
		}
		if b := a.progress(s.id); b.Status != wire.BatchDone || b.Pending != 0 || b.Outcomes["usable"] != 2 || b.Outcomes["empty"] != 1 {
			t.Errorf("%+v", b)
		}
		if l := a.pages(s.id, 2, "&outcome=empty"); len(l) != 1 || l[0].Line != 4 {
			t.Errorf("empty: %+v", l)
		}
	})
}

// What was refused is offered again under the same custom_ids: what became a
// job stays it, and the new verdicts take the place of the old.
func TestRefusedLinesAgain(t *testing.T) {
	inAPI(t, "", func(a *api) {
		lines := []string{`{"text":"a","custom_id":"a"}`, `{"text":"b","custom_id":"b"}`, `{"text":"c","custom_id":"c"}`}
		a.cfg.Gate.AdmitPaid, a.cfg.Gate.AdmitFree = false, false
		s := a.sendLines("/v1/jobs/batch", lines, wire.HeaderIdempotencyKey, "night")
		if got := s.statuses(); !slices.Equal(got, []int{429, 429, 429}) {
			t.Fatalf("%v", got)
		}
		if b := a.progress(s.id); b.Status != wire.BatchDone || b.Refused != 3 || b.Verdicts["reject_closed"] != 3 {
			t.Errorf("%+v", b)
		}
		a.cfg.Gate.AdmitPaid = true
		two := a.sendLines("/v1/batches/"+s.id, lines[1:])
		if got := two.statuses(); two.id != s.id || !slices.Equal(got, []int{202, 202}) {
			t.Fatalf("%s %v", two.id, got)
		}
		b := a.progress(s.id)
		if b.Lines != 3 || b.Admitted != 2 || b.Refused != 1 {
			t.Errorf("%+v", b)
		}
		// The whole again, by the key: nothing is done twice.
		all := a.sendLines("/v1/jobs/batch", lines, wire.HeaderIdempotencyKey, "night")
		if got := all.statuses(); all.id != s.id || !slices.Equal(got, []int{202, 200, 200}) || all.lines[1].JobID != two.lines[0].JobID {
			t.Errorf("%s %v", all.id, got)
		}
		if n := len(a.admittedJobs()); n != 3 {
			t.Errorf("%d jobs", n)
		}
		// The order is that of the first time.
		for i, l := range a.pages(s.id, 2, "") {
			if l.CustomID != []string{"a", "b", "c"}[i] || l.Line != i+1 || l.Status != 202 {
				t.Errorf("%d: %+v", i, l)
			}
		}
		// Another body under a custom_id is a conflict, and unmakes nothing.
		bad := a.sendLines("/v1/batches/"+s.id, []string{`{"text":"other","custom_id":"a"}`})
		if l := bad.lines[0]; l.Status != 409 || l.Error.Reason != wire.ReasonKeyConflict || l.Error.Field != "custom_id" || !strings.Contains(l.Error.Detail, "custom_id") {
			t.Errorf("%+v", l)
		}
		if b := a.progress(s.id); b.Admitted != 3 || b.Invalid != 0 {
			t.Errorf("%+v", b)
		}
		// Another batch has other jobs.
		if other := a.sendLines("/v1/jobs/batch", lines); other.id == s.id || other.lines[0].Status != 202 {
			t.Errorf("%+v", other)
		}
	})
}

func TestCancelABatch(t *testing.T) {
	inAPI(t, "", func(a *api) {
		var lines []string
		for i := range 120 { // more than are cancelled in one step
			lines = append(lines, fmt.Sprintf(`{"text":"x","custom_id":"%d","deadline_ms":%d}`, i, 80_000_000+i))
		}
		s := a.sendLines("/v1/jobs/batch", lines)
		first, second := a.claim(), a.claim()
		_, err := a.store.Finish(context.Background(), first, usable("x"))
		a.must(err)
		w := a.send(http.MethodDelete, "/v1/batches/"+s.id, "")
		if w.Code != 200 || w.Body.String() != fmt.Sprintf(`{"batch_id":%q,"results":{"cancelled":118,"done":1,"running":1}}`+"\n", s.id) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if b := a.progress(s.id); b.Status != wire.BatchInProgress || b.Pending != 1 {
			t.Errorf("%+v", b)
		}
		_, err = a.store.Finish(context.Background(), second, &broker.Finish{Outcome: broker.OutcomeFailed, FirstByteMS: -1})
		a.must(err)
		if b := a.progress(s.id); b.Status != wire.BatchCancelled || b.Outcomes["cancelled"] != 119 || b.Outcomes["usable"] != 1 {
			t.Errorf("%+v", b)
		}
		synctest.Wait()
		if got := len(a.log.jobs(t)); got != 118 {
			t.Errorf("%d log lines of jobs that ended here", got)
		}
		if w := a.send(http.MethodPost, "/v1/batches/"+s.id, lines[0], "Content-Type", ndJSON); w.Code != 409 || w.problem.Reason != wire.ReasonBatchCancelled {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// A batch that is cancelled while its lines come in takes no more of them.
func TestCancelWhileReceiving(t *testing.T) {
	inAPI(t, "", func(a *api) {
		const key = "k"
		in, out := io.Pipe()
		done := make(chan sent)
		go func() { done <- a.sendBody("/v1/jobs/batch", in, wire.HeaderIdempotencyKey, key) }()
		id := batchID("", key)
		_, _ = io.WriteString(out, `{"text":"x"}`+"\n")
		synctest.Wait()
		if b := a.progress(id); b.Status != wire.BatchReceiving || b.Admitted != 1 {
			t.Errorf("%+v", b)
		}
		if w := a.send(http.MethodDelete, "/v1/batches/"+id, ""); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		_, _ = io.WriteString(out, `{"text":"y"}`+"\n")
		_ = out.Close()
		s := <-done
		if got := s.statuses(); !slices.Equal(got, []int{202, 409}) || s.lines[1].Error.Reason != wire.ReasonBatchCancelled {
			t.Errorf("%v", got)
		}
		if b := a.progress(id); b.Status != wire.BatchCancelled || b.Outcomes["cancelled"] != 1 || b.Invalid != 1 {
			t.Errorf("%+v", b)
		}
	})
}

// An API that dies in the middle of a batch leaves a batch that can be read,
// and is done when its jobs are.
func TestReceivingEndsByItself(t *testing.T) {
	inAPI(t, "", func(a *api) {
		_, err := a.store.OpenBatch(context.Background(), "b", "", false, 10)
		a.must(err)
		if b := a.progress("b"); b.Status != wire.BatchReceiving {
			t.Errorf("%+v", b)
		}
		start := time.Now()
		var b wire.Batch
		for b.Status != wire.BatchDone {
			a.read("/v1/batches/b?wait=1m", &b)
		}
		if took := time.Since(start); took < 2*time.Minute || took > 2*time.Minute+2*time.Second {
			t.Errorf("%v", took)
		}
		// Nothing of it stays.
		time.Sleep(time.Hour)
		if w := a.send(http.MethodGet, "/v1/batches/b", ""); w.Code != 404 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// A batch ends although the record of one of its jobs is gone.
func TestBatchWithALostJob(t *testing.T) {
	inAPI(t, "", func(a *api) {
		s := a.sendLines("/v1/jobs/batch", []string{`{"text":"x"}`})
		a.redis.Del("{leeway}:job:" + s.lines[0].JobID)
		var b wire.Batch
		a.read("/v1/batches/"+s.id+"?wait=5s", &b)
		if b.Status != wire.BatchInProgress || b.Pending != 1 {
			t.Errorf("%+v", b)
		}
		time.Sleep(lostAfter + 15*time.Second)
		a.read("/v1/batches/"+s.id, &b)
		if b.Status != wire.BatchDone || b.Lost != 1 {
			t.Errorf("%+v", b)
		}
		if l := a.pages(s.id, 5, ""); len(l) != 1 || l[0].Job != nil || l[0].JobID != s.lines[0].JobID {
			t.Errorf("%+v", l)
		}
	})
}

func TestListsAreTheProducersOwn(t *testing.T) {
	doc := fmt.Sprintf("access:\n  producers: [{name: one, key_sha256: %s}, {name: two, key_sha256: %s}]\n  oncall: [{name: sam, key_sha256: %s}]\n", hashed("one"), hashed("two"), hashed("sam"))
	inAPI(t, doc, func(a *api) {
		as := func(key string) []string { return []string{"Authorization", "Bearer " + key} }
		one := a.sendLines("/v1/jobs/batch", []string{`{"text":"x","deadline_ms":600000}`, `{"text":"y","deadline_ms":600000}`}, as("one")...)
		two := a.sendLines("/v1/jobs/batch", []string{`{"text":"x","deadline_ms":600000}`}, as("two")...)
		for _, tt := range []struct {
			key, query    string
			jobs, batches int
		}{
			{"one", "", 2, 1},
			{"two", "", 1, 1},
			{"two", "?producer=two", 1, 1},
			{"two", "?producer=one", -1, -1},
			{"sam", "", 3, 2},
			{"sam", "?producer=one", 2, 1},
			{"sam", "?producer=nobody", 0, 0},
			{"sam", "?limit=1", 1, 1},
		} {
			for what, want := range map[string]int{"jobs": tt.jobs, "batches": tt.batches} {
				w := a.send(http.MethodGet, "/v1/"+what+tt.query, "", as(tt.key)...)
				if want < 0 {
					if w.Code != 400 || w.problem.Field != "producer" {
						t.Errorf("%s %s%s: %d %s", tt.key, what, tt.query, w.Code, w.Body)
					}
					continue
				}
				var list map[string]json.RawMessage
				var rows []any
				a.must(json.Unmarshal(w.Body.Bytes(), &list))
				a.must(json.Unmarshal(list[what], &rows))
				if len(rows) != want || (list["next_cursor"] != nil) != (tt.query == "?limit=1") {
					t.Errorf("%s %s%s: %s", tt.key, what, tt.query, w.Body)
				}
			}
		}
		for _, path := range []string{"", "/lines", "/results"} {
			if w := a.send(http.MethodGet, "/v1/batches/"+one.id+path, "", as("two")...); w.Code != 404 {
				t.Errorf("another's batch%s: %d %s", path, w.Code, w.Body)
			}
			if w := a.send(http.MethodGet, "/v1/batches/"+two.id+path, "", as("two")...); w.Code != 200 {
				t.Errorf("one's own batch%s: %d %s", path, w.Code, w.Body)
			}
		}
		if w := a.send(http.MethodDelete, "/v1/batches/"+one.id, "", as("two")...); w.Code != 404 {
			t.Errorf("another's batch cancelled: %d %s", w.Code, w.Body)
		}
		if w := a.send(http.MethodPost, "/v1/batches/"+one.id, `{"text":"x"}`, append(as("two"), "Content-Type", ndJSON)...); w.Code != 404 {
			t.Errorf("added to another's batch: %d %s", w.Code, w.Body)
		}
	})
}

// A list looks past what its filter leaves out.
func TestListJobsByFilter(t *testing.T) {
	inAPI(t, "", func(a *api) {
		first := a.admitted(`{"text":"x","deadline_ms":600000}`)
		a.endNext(usable("x"))
		for range 5 {
			a.admitted(`{"text":"x","deadline_ms":600000}`)
		}
		for query, want := range map[string]int{
			"?state=done&limit=2": 1, "?outcome=usable&limit=2": 1, "?state=waiting&limit=2": 2, "?class=summary": 6, "?class=other": 0, "?outcome=late": 0,
		} {
			var l wire.JobList
			a.read("/v1/jobs"+query, &l)
			if len(l.Jobs) != want || want == 1 && l.Jobs[0].ID != first {
				t.Errorf("%s: %+v", query, l)
			}
		}
	})
}

// Lines that are being read are counted over a producer's connections: those for
// whom there is no memory wait, and are told so if that takes too long.
func TestMemoryOverConnections(t *testing.T) {
	inAPI(t, "limits: {text_bytes: 200000, in_flight_bytes: 3800000}", func(a *api) {
		long := `{"text":"` + strings.Repeat("x", 90_000)
		var ins []*io.PipeWriter
		done := make(chan sent)
		for range 3 { // each holds most of a line: 2 x 64 KiB of it, and as much for the connection
			in, out := io.Pipe()
			ins = append(ins, out)
			go func() { done <- a.sendBody("/v1/jobs/batch", in) }()
			_, _ = io.WriteString(out, long)
			synctest.Wait()
		}
		// Nothing is left for this body; it is told so after a while.
		hog := &hold{of: a.memory, who: "192.0.2.1"} // where these requests come from
		for hog.take(context.Background(), 1000, 0) {
			continue
		}
		start := time.Now()
		if w := a.submit(`{"text":"` + strings.Repeat("y", 1000) + `"}`); w.Code != 503 || w.problem.Reason != wire.ReasonBusy || time.Since(start) != bodyMemoryWait {
			t.Errorf("%d %s after %v", w.Code, w.Body, time.Since(start))
		}
		if w := a.send(http.MethodPost, "/v1/jobs/batch", `{"text":"x"}`, "Content-Type", ndJSON); w.Code != 503 || w.problem.Reason != wire.ReasonBusy {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		// The rest of a line waits, and goes on when there is memory again.
		go func() {
			_, _ = io.WriteString(ins[0], strings.Repeat("x", 50_000)+"\"}\n")
			_ = ins[0].Close()
		}()
		time.Sleep(lineMemoryWait / 2)
		hog.release()
		if s := <-done; !slices.Equal(s.statuses(), []int{202}) {
			t.Errorf("%+v", s.lines)
		}
		// Without any it is refused alone, with a hint to come again.
		for hog.take(context.Background(), 1000, 0) {
			continue
		}
		go func() { _, _ = io.WriteString(ins[1], strings.Repeat("x", 50_000)+"\"}\n") }()
		time.Sleep(lineMemoryWait + time.Second)
		hog.release()
		_, _ = io.WriteString(ins[1], `{"text":"x"}`)
		_ = ins[1].Close()
		s := <-done
		if got := s.statuses(); !slices.Equal(got, []int{503, 202}) || s.lines[0].RetryAfterMS == 0 || s.lines[0].Error.Reason != wire.ReasonBusy {
			t.Errorf("%+v", s.lines)
		}
		_ = ins[2].CloseWithError(io.ErrUnexpectedEOF)
		<-done
		if a.memory.free != a.cfg.Limits.InFlightBytes || len(a.memory.by) > 0 {
			t.Errorf("memory was not given back: %d free, held by %v", a.memory.free, a.memory.by)
		}
	})
}
