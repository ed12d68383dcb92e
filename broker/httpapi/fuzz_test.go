package httpapi

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/config"
	"leeway/broker/wire"
)

// FuzzDecode: whatever comes in, a submission is either a job within every
// bound or an error that becomes a 400 and does not repeat the input at length.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"text":"x"}`, `{"text":"x","deadline_ms":15000,"metadata":{"a":"b"}}`, `{"text":"x","deadline_at":"2030-01-31T02:14:00Z"}`,
		`{"text":"x","deadline_ms":1e400}`, `{"text":"\ud800"}`, `[[[[`, `{"text":"x","text":"y"}`, `null`, "{\"text\":\"\xff\"}", `{"a/b~c":{}}`,
	} {
		f.Add([]byte(s))
	}
	cfg, err := config.Parse([]byte("limits: {text_bytes: 1000}"))
	if err != nil {
		f.Fatal(err)
	}
	const now = 946684800000
	f.Fuzz(func(t *testing.T, body []byte) {
		sub, err := decodeStrict[submission](body)
		var job *broker.Submission
		if err == nil {
			job, err = sub.job(cfg, now, time.Time{})
		}
		if err != nil {
			p := asProblem(err)
			if p.Status != 400 || p.Field == "" || len(p.Detail) > 600 {
				t.Fatalf("%q: %+v from %v", body, p, err)
			}
			if _, err := json.Marshal(p); err != nil {
				t.Fatal(err)
			}
			return
		}
		if job.DeadlineInMS < 1 || job.DeadlineInMS > 24*3600*1000 || job.ReserveMS != 2000 || strings.TrimSpace(job.Text) == "" ||
			len(job.Text) > 1000 || job.MaxOutputTokens < 1 || job.MaxOutputTokens > 400 || len(job.Metadata) > MaxMetadata || len(job.Producer) > wire.MaxProducerBytes {
			t.Fatalf("%q became %+v", body, job)
		}
	})
}

func FuzzReadLine(f *testing.F) {
	f.Add([]byte("a\nb\n"), 3)
	f.Fuzz(func(t *testing.T, in []byte, limit int) {
		limit = min(max(limit, 1), 1000)
		total := readAll(t, in, limit)
		if total > len(in) {
			t.Fatalf("%d bytes out of %d", total, len(in))
		}
	})
}

func readAll(t *testing.T, in []byte, limit int) (total int) {
	t.Helper()
	r := newLineReader(in)
	for range len(in) + 2 {
		line, err := readLine(r, limit, free)
		if len(line) > limit {
			t.Fatalf("a line of %d over the limit of %d", len(line), limit)
		}
		total += len(line)
		if err != nil && !errors.Is(err, errLineTooLong) {
			return total
		}
	}
	t.Fatal("never ends")
	return 0
}
