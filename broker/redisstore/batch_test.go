package redisstore

import (
	"strings"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/ledger"
	"leeway/slackgate"
)

var batchBehaviours = []behaviour{
	{"the keys of a batch end together", batchKeysEnd},
	{"a batch's name used again begins without lines", batchNameAgain},
	{"keys of a batch that would stay are given an end", strayBatchKeys},
	{"an archive that works after its mark has lapsed marks again for a week", archivedAfterMark},
}

// inBatch is a job that is a line of a batch.
func inBatch(id, batch string, at int64) *broker.Submission {
	j := testJob(id, 60_000)
	j.Place = broker.BatchPlace{Batch: batch, Line: broker.LineName(id, at), At: at}
	return j
}

// said is a line that became no job.
func said(name string, at int64) broker.BatchLine {
	return broker.BatchLine{Name: broker.LineName(name, at), At: at, Reason: "bad_request", Said: []byte("{}")}
}

// A batch stays for longer than its lines ask for: they were written in the
// millisecond of its opening, or jobs are kept for less.
func batchKeysEnd(t *testing.T, h *harness) {
	short := newHarnessWith(t, h.url, Options{Prefix: strings.Trim(h.prefix, "{}"), Timeout: testTimeout, Keep: time.Minute})
	short.live(10, 10)
	for batch, write := range map[string]func(batch string){
		"jobs":    func(batch string) { short.put(slackgate.Paid, inBatch("j", batch, 1)) },
		"refused": func(batch string) { h.must(h.SetLines(bg, batch, true, said("bad", 1))) },
	} {
		_, err := h.OpenBatch(bg, batch, "p", false, 10)
		h.must(err)
		h.must(h.rdb.PExpire(bg, h.key("batch", batch), 2*time.Hour).Err())
		write(batch)
		for _, part := range []string{"order", "lines"} {
			if d, whole := h.ttl("batch", batch, part), h.ttl("batch", batch); (whole - d).Abs() > time.Second {
				t.Errorf("%s: %s stays for %v, the batch for %v", batch, part, d, whole)
			}
		}
	}
	if o, err := short.finish(short.claim(slackgate.Paid), usable("x")); err != nil || o != broker.OutcomeUsable {
		t.Errorf("%s, %v", o, err)
	}
}

func batchNameAgain(t *testing.T, h *harness) {
	for range 2 {
		_, err := h.OpenBatch(bg, "b", "p", false, 10)
		h.must(err)
		b, err := h.Batch(bg, "b")
		h.must(err)
		lines, err := h.Lines(bg, "b", 0, 10, false)
		if b.Lines != 0 || len(lines) != 0 || err != nil {
			t.Errorf("a new batch has %d lines: %+v, %v", b.Lines, lines, err)
		}
		h.must(h.SetLines(bg, "b", true, said("bad", 1)))
		h.must(h.rdb.Del(bg, h.key("batch", "b")).Err())
	}
}

func strayBatchKeys(t *testing.T, h *harness) {
	_, err := h.OpenBatch(bg, "b", "p", false, 10)
	h.must(err)
	h.must(h.SetLines(bg, "b", true, said("bad", 1)))
	for _, part := range []string{"order", "lines"} {
		h.must(h.rdb.Persist(bg, h.key("batch", "b", part)).Err())
	}
	if s := h.strays(); s != (broker.Strays{Removed: 2}) {
		t.Errorf("mended %+v", s)
	}
}

func archivedAfterMark(t *testing.T, h *harness) {
	h.must(h.Archived(bg, ledger.Spend, 0))
	if d := h.ttl("archive"); d <= 0 || d > archiveMark {
		t.Errorf("rows are kept for an archive for %v", d)
	}
}
