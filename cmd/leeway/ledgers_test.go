package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/broker/ledger"
	"leeway/broker/wire"
	"leeway/cmd/app"
	"leeway/rehearsal/stage"
)

func TestSparkline(t *testing.T) {
	for _, tt := range []struct {
		values []int64
		width  int
		want   string
	}{
		{nil, 5, ""},
		{[]int64{0, 0}, 5, "  "},
		{[]int64{1, 0, 8}, 5, "▂ █"},
		{[]int64{1, 1000}, 5, "▁█"},
		{[]int64{1, 1, 1, 1}, 2, "██"},
		{[]int64{4, 0, 0, 0, 0, 1}, 3, "█ ▃"},
	} {
		if got := sparkline(tt.values, tt.width); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.values, got, tt.want)
		}
	}
}

func TestSideBySide(t *testing.T) {
	got := strings.Join(sideBySide([]string{"spend", "▁█", "x"}, []string{"misses", "none"}), "\n")
	if want := "spend  |  misses\n▁█     |  none\nx      |"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Sums of several steps are one line for each set of labels, the largest first.
func TestSumLines(t *testing.T) {
	const hour = 3_600_000
	spend := func(hours int64, path, backend string, in, out int64) *ledger.Sum {
		return &ledger.Sum{AtMS: hours * hour, Path: path, Backend: backend, SpendSum: &ledger.SpendSum{
			Attempts: 1, InputTokens: in, OutputTokens: out, SpentTokens: in + out,
			CostMicro: map[string]int64{"USD": in}, Known: map[string]int64{"reported": 1},
		}}
	}
	miss := func(hours int64, producer, cause string, n int64) *ledger.Sum {
		return &ledger.Sum{AtMS: hours * hour, Path: "paid", Producer: producer, MissSum: &ledger.MissSum{Misses: n, Causes: map[string]int64{cause: n}}}
	}
	for _, tt := range []struct {
		name     string
		sums     wire.RollupAnswer
		terminal bool
		want     string
	}{
		{
			"nothing", wire.RollupAnswer{Ledger: ledger.Spend, ToMS: hour}, false,
			"spend ledger, hour since 1970-01-01 00:00Z\nnothing was booked",
		},
		{
			"spend by path and backend",
			wire.RollupAnswer{Ledger: ledger.Spend, ToMS: 2 * hour, Rows: []*ledger.Sum{
				spend(0, "free", "b", 1, 1), spend(0, "paid", "a", 10, 5), spend(1, "paid", "a", 20, 5), spend(1, "paid", "", 1, 1),
			}}, false,
			`spend ledger, hour since 1970-01-01 00:00Z
PATH  BACKEND  ATTEMPTS  IN  OUT  PAID FOR  COST MICRO  KNOWN
paid  a        2         30  10   40        USD=30      reported=2
free  b        1         1   1    2         USD=1       reported=1
paid  -        1         1   1    2         USD=1       reported=1`,
		},
		{
			"misses by producer, drawn, with no sums from before",
			wire.RollupAnswer{Ledger: ledger.Misses, ToMS: 3 * hour, OldestAtMS: hour, Rows: []*ledger.Sum{
				miss(1, "=cmd", "late", 1), miss(2, "=cmd", "empty", 7), miss(9, "beyond", "late", 1),
			}}, true,
			`deadline-miss ledger, hour since 1970-01-01 01:00Z (no sums are kept from before)
PATH  PRODUCER  MISSES  CAUSES          COURSE
paid  =cmd      8       empty=7 late=1   ▂█
paid  beyond    1       late=1`,
		},
	} {
		tt.sums.By = ledger.ByHour
		got := trimmed(strings.Join(sumLines(&tt.sums, tt.terminal), "\n"))
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// The whole command over the whole of Leeway in one process.
func TestLedgersCommand(t *testing.T) {
	cfg := config.Default()
	cfg.Listen, cfg.MetricsListen, cfg.WorkerMetricsListen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	cfg.Pools.Paid.FirstByteP95MS = 200
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	e, err := stage.Start(stage.Declared(cfg, app.Logger(&log, slog.LevelError)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	api := "--api=" + e.URL
	c := e.Client()
	v, err := c.Submit(context.Background(), &client.Job{Text: "A refusal costs milliseconds.", Producer: "nightly"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Wait(context.Background(), v.JobID); err != nil {
		t.Fatal(err)
	}
	_, _ = c.Submit(context.Background(), &client.Job{Text: "late", DeadlineMS: 1, Producer: "clock"})

	leeway := func(want int, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if got := run(append([]string{"ledgers"}, args...), &out, &errs); got != want {
			t.Errorf("%v: exit %d, want %d: %s%s", args, got, want, &out, &errs)
		}
		return out.String()
	}
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"spend", api}, []string{"spend ledger, minute since", "PATH  BACKEND", "paid  lab-paid  1", "reported=1"}},
		{[]string{"spend", api, "--group=producer"}, []string{"PRODUCER  ATTEMPTS", "nightly   1"}},
		{[]string{"spend", api, "--producer=nobody"}, []string{"nothing was booked"}},
		{[]string{"misses", api, "--by=hour", "--group=path,producer"}, []string{"reject  clock     1       arrived_without_slack=1"}},
		{[]string{"both", api}, []string{"  |  deadline-miss ledger", "paid  1", "|  reject  1"}},
		{[]string{"spend", api, "--rows"}, []string{"id,job_id,attempt,", v.JobID + ",1,paid,summary,nightly,lab-paid"}},
		{[]string{"misses", api, "--rows", "--format=ndjson"}, []string{`"cause":"arrived_without_slack"`}},
		{[]string{"spend", api, "--format=csv"}, []string{"at_ms,path,class,producer,backend,attempts", ",paid,,,lab-paid,1,"}},
		{[]string{"check", api, "--metrics=http://" + e.API.MetricsAddr() + "/metrics"}, []string{
			"✓ every admitted job has one outcome, waits or runs: 1 admitted, 1 ended", "✓ every attempt has one spend row: 1 attempts", "✓ the metrics say what the ledgers say",
		}},
	} {
		got := leeway(0, tt.args...)
		for _, w := range tt.want {
			if !strings.Contains(got, w) {
				t.Errorf("%v: no %q in\n%s", tt.args, w, got)
			}
		}
		if strings.ContainsRune(got, '█') {
			t.Errorf("%v: drawn for a terminal:\n%s", tt.args, got)
		}
	}
	if got := leeway(2, "check", "--api=http://127.0.0.1:1"); !strings.Contains(got, "could not be checked") {
		t.Errorf("%s", got)
	}
	leeway(1, "spend", "--api=http://127.0.0.1:1")
	leeway(2, "both", api, "--by=day")
}

// Books that do not balance, and metrics that say something else, are told and
// change the exit code.
func TestCheckFails(t *testing.T) {
	report := `{"balanced":%v,"items":[{"name":"outcomes","ok":%v,"detail":"outcomes","problems":["paid: 2 came in"],"found":7}],"totals":{"miss:paid":3,"known:paid:reported":1}}`
	page := "job_deadline_miss_total{path=\"paid\"} %d\njob_attempt_total{known=\"reported\",path=\"paid\"} 1\n"
	for _, tt := range []struct {
		balanced bool
		misses   int
		want     int
		say      string
	}{
		{true, 3, 0, "✓ the metrics say what the ledgers say: 2 series"},
		{false, 3, 1, "paid: 2 came in\n      and 6 more"},
		{true, 2, 1, `job_deadline_miss_total{path="paid"} is 2; the ledgers say 3`},
		{true, 4, 1, `job_deadline_miss_total{path="paid"} is 4; the ledgers say 3`},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/metrics" {
				_, _ = fmt.Fprintf(w, page, tt.misses)
				return
			}
			_, _ = fmt.Fprintf(w, report, tt.balanced, tt.balanced)
		}))
		var out bytes.Buffer
		if got := run([]string{"ledgers", "check", "--api=" + srv.URL, "--metrics=" + srv.URL + "/metrics"}, &out, &out); got != tt.want || !strings.Contains(out.String(), tt.say) {
			t.Errorf("exit %d, want %d with %q:\n%s", got, tt.want, tt.say, &out)
		}
		srv.Close()
	}
}
