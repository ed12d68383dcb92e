//go:build server && accept

package archive

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"leeway/broker/ledger"
)

// A million rows of spend go into the archive while Redis is kept small; the
// rate is printed.
func TestAcceptMillionRows(t *testing.T) {
	const n = 1_000_000
	w := newWorld(t)
	w.must(w.ExpectArchive(bg))
	const chunk = 2000
	for at := 0; at < n; at += chunk {
		_, err := w.rdb.Pipelined(bg, func(p redis.Pipeliner) error {
			for i := range chunk {
				row := fmt.Sprintf(`{"job_id":"01981f2e-7b1c-7c3a-9d5e-%012d","attempt":1,"path":"paid","class":"summary","producer":"nightly-%d","backend":"openai",`+
					`"model":"gpt-4o-mini","currency":"USD","price_version":"2024-07-18","opened_at_ms":1764460800000,"priced":true,"max_cost_micro":5000,`+
					`"settled_at_ms":1764460801200,"input_tokens":1812,"output_tokens":193,"cost_micro":%d,"known":"reported","result":"whole"}`, at+i, i%50, at+i)
				p.XAdd(bg, &redis.XAddArgs{Stream: "{a}:ledger:spend", Values: []string{"row", row}})
			}
			p.HIncrBy(bg, "{a}:totals", "attempts:paid", chunk)
			return nil
		})
		w.must(err)
	}
	began := time.Now()
	stop := w.run(Options{BatchRows: 5000})
	for end := began.Add(20 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		books, err := w.Books(bg)
		w.must(err)
		if books.Booked(ledger.Spend) == n && books.Spend.Rows <= keepRows && w.lag() == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("still %d rows behind", w.lag())
		}
	}
	took := time.Since(began)
	stop()
	var rows, jobs, cost int64
	w.query("SELECT count(*), count(DISTINCT job_id), sum(cost_micro)::bigint FROM leeway.spend", &rows, &jobs, &cost)
	if rows != n || jobs != n || cost != int64(n)*(n-1)/2 {
		t.Errorf("%d rows of %d jobs at %d", rows, jobs, cost)
	}
	t.Logf("%d rows archived and dropped from Redis in %v: %.0f rows/s", n, took.Round(time.Millisecond), n/took.Seconds())
}
