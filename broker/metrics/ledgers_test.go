package metrics

import (
	"context"
	"fmt"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/ledger"
	"leeway/slackgate"
)

func TestLedgers(t *testing.T) {
	inBubble(t, func(b *bench) {
		ctx := context.Background()
		absent := func(got map[string]string, series ...string) {
			t.Helper()
			for _, s := range series {
				if v, ok := got[s]; ok {
					t.Errorf("%s is there: %s", s, v)
				}
			}
		}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		got := b.scrape()
		b.want(got, map[string]string{`leeway_ledger_rows{ledger="spend"}`: "0", `leeway_ledger_over_rows{ledger="misses"}`: "0"})
		absent(got, `leeway_ledger_oldest_ms{ledger="spend"}`, `leeway_archive_lag_rows{ledger="spend"}`, "leeway_archive_last_success_ms")

		must(b.store.SyncClock(ctx))
		must(b.store.ExpectArchive(ctx))
		begin := b.store.NowMS()
		book := func(n int, reported int64) {
			row := broker.SpendRow{JobID: fmt.Sprint("j", n), Attempt: 1, Path: slackgate.Paid, Class: "c", Backend: "lab", Currency: "USD", Priced: true}
			must(b.store.OpenProbe(ctx, &row))
			row.CostMicro, row.Known = reported, broker.KnownReported
			row.ReportedCostMicro, row.ListCostMicro = new(reported), new(int64(100))
			must(b.store.Settle(ctx, row))
			time.Sleep(time.Second)
		}
		for n, reported := range []int64{99, 100, 101, 102, 98, 0} { // one off is rounding
			book(n, reported)
		}
		got = b.scrape()
		b.want(got, map[string]string{
			`leeway_ledger_rows{ledger="spend"}`: "6", `leeway_ledger_oldest_ms{ledger="spend"}`: fmt.Sprintf("%.9g", float64(begin)),
			`leeway_archive_lag_rows{ledger="spend"}`: "6", `leeway_archive_lag_rows{ledger="misses"}`: "0", "leeway_archive_last_success_ms": "0",
			`job_cost_difference_total{backend="lab"}`: "3", `leeway_ledger_over_rows{ledger="spend"}`: "0",
		})
		must(b.store.Archived(ctx, ledger.Spend, 4))
		got = b.scrape()
		b.want(got, map[string]string{`leeway_archive_lag_rows{ledger="spend"}`: "2"})
		b.want(got, map[string]string{"leeway_ledger_balanced": "1", "leeway_ledger_overdue_rows": "0"})
		row := broker.SpendRow{JobID: "lost", Attempt: 1, Path: slackgate.Paid, Class: "c", Backend: "lab", Currency: "USD", Priced: true}
		must(b.store.OpenProbe(ctx, &row))
		time.Sleep(time.Minute + ledger.GraceMS*time.Millisecond + time.Second)
		b.redis.HIncrBy("{t}:totals", "admitted:paid", 1)
		b.want(b.scrape(), map[string]string{"leeway_ledger_balanced": "0", "leeway_ledger_overdue_rows": "1"})
		if got["leeway_archive_last_success_ms"] == "0" {
			t.Error("the archive's success does not show")
		}
	})
}
