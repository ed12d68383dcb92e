package metrics

import (
	"context"
	"io"
	"maps"
	"net"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"

	"leeway/broker"
	"leeway/broker/config"
	"leeway/broker/shard"
	"leeway/broker/store"
	"leeway/broker/store/storetest"
	"leeway/slackgate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type bench struct {
	*Metrics
	t     *testing.T
	store store.Shard
	redis *miniredis.Miniredis
}

func inBubble(t *testing.T, f func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true)
		rdb := storetest.Dial(func(context.Context, string, string) (net.Conn, error) { return m.Dial() })
		b := &bench{t: t, Metrics: New(), store: storetest.New(rdb, storetest.Options{Prefix: "t"}), redis: m}
		b.Share(shard.New(b.store), configured, policy)
		defer func() {
			_ = rdb.Close()
			m.Close()
		}()
		f(b)
	})
}

func configured() *config.Config {
	cfg := config.Default()
	cfg.Pools.Paid.Backends = []config.Backend{{Name: "lab", Prices: []config.DatedPrice{{Price: config.Price{Currency: "USD"}}, {Price: config.Price{Currency: "EUR"}}}}}
	cfg.Pools.Free.Backends = []config.Backend{{Name: "lab", Price: config.Price{Currency: "USD"}}, {Name: "other", Price: config.Price{Currency: "USD"}}}
	return cfg
}

func policy() (p [slackgate.NumPaths]broker.PoolPolicy) {
	p[slackgate.Paid] = broker.PoolPolicy{Limit: 8, FirstByteP95MS: 1200}
	p[slackgate.Free] = broker.PoolPolicy{Limit: 8, FirstByteP95MS: 4000}
	return p
}

// scrape returns the series of a scrape by their names with labels.
func (b *bench) scrape() map[string]string {
	b.t.Helper()
	w := httptest.NewRecorder()
	b.Handler().ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), "GET", "/metrics", nil))
	page, _ := io.ReadAll(w.Body)
	if w.Code != 200 {
		b.t.Fatalf("%d %s", w.Code, page)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(page)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			i := strings.LastIndexByte(line, ' ')
			out[line[:i]] = line[i+1:]
		}
	}
	return out
}

func (b *bench) want(got map[string]string, want map[string]string) {
	b.t.Helper()
	for series, v := range want {
		if got[series] != v {
			b.t.Errorf("%s is %q, want %q", series, got[series], v)
		}
	}
}

func TestEveryNameIsThereFromTheStart(t *testing.T) {
	inBubble(t, func(b *bench) {
		got := b.scrape()
		for _, series := range []string{
			`job_decision_total{path="paid"}`, `job_decision_total{path="free"}`, `job_decision_total{path="reject"}`,
			`job_first_byte_ms_count{path="paid"}`, `job_first_byte_ms_count{path="free"}`,
			`job_queue_age_ms{path="paid"}`, `job_queue_age_ms{path="free"}`,
			`job_remaining_slack_ms_count{stage="admit"}`,
			`job_deadline_miss_total{path="paid"}`, `job_deadline_miss_total{path="free"}`, `job_deadline_miss_total{path="reject"}`,
			`job_token_spend_total{path="paid"}`, `job_token_spend_total{path="free"}`,
			`job_inflight{path="paid"}`, `job_inflight{path="free"}`,
			`job_reject_total{reason="reject_deadline"}`, `job_reject_total{reason="reject_no_slack"}`, `job_reject_total{reason="reject_closed"}`,
			`job_reject_total{reason="reject_budget"}`, `job_reject_total{reason="reject_share"}`, `job_reject_total{reason="reject_rate"}`,
			`job_reject_total{reason="gate_unavailable"}`, `job_reject_total{reason="pool_down"}`,
			`job_outcome_total{outcome="usable",path="paid"}`, `job_outcome_total{outcome="cancelled",path="free"}`,
			`job_tokens_total{kind="input",path="paid"}`, `job_tokens_total{kind="output",path="free"}`,
			`job_queue_wait_ms_count{path="paid"}`, `job_waiting{path="free"}`,
			`job_cost_micro_total{currency="USD",path="paid"}`, `job_cost_micro_total{currency="EUR",path="paid"}`, `job_cost_micro_total{currency="USD",path="free"}`,
			`job_cost_difference_total{backend="lab"}`, `job_cost_difference_total{backend="other"}`,
		} {
			if got[series] != "0" {
				t.Errorf("%s is %q before anything happened", series, got[series])
			}
		}
		b.want(got, map[string]string{"leeway_store_up": "1"})
		if _, ok := got[`job_smallest_slack_ms{path="paid"}`]; ok {
			t.Error("a smallest slack with nothing waiting")
		}
		for _, o := range broker.Outcomes {
			for _, path := range slackgate.Paths {
				if _, ok := got[`job_outcome_total{outcome="`+string(o)+`",path="`+path.String()+`"}`]; !ok {
					t.Errorf("no series for outcome %s on %s", o, path)
				}
			}
		}
	})
}

func TestSharedNumbersComeFromTheStore(t *testing.T) {
	inBubble(t, func(b *bench) {
		ctx := context.Background()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(b.store.Beat(ctx, broker.Worker{ID: "w", Path: slackgate.Paid, Slots: 20}, time.Hour))
		offer := func(id string, deadlineMS int64) {
			t.Helper()
			_, err := admit(b.store, policy(), broker.Offer{
				Job:    &broker.Submission{Spec: broker.Spec{ID: id, Class: "a class", Producer: "somebody", Text: "x"}, DeadlineInMS: deadlineMS, ReserveMS: 2000},
				LeftMS: deadlineMS, ReserveMS: 2000, Miss: deadlineMS <= 2000,
				Bounds: [2]slackgate.Bound{{Path: slackgate.Paid, MaxInFlight: 100, MaxQueueAgeMS: slackgate.Unbounded, MaxClassQueueAgeMS: slackgate.Unbounded}},
			})
			must(err)
		}
		offer("j", 60_000)
		offer("k", 90_000)
		offer("late", 1)
		c, _, err := b.store.Claim(ctx, slackgate.Paid, 8, time.Minute)
		must(err)
		row := broker.SpendRow{JobID: "j", Attempt: 1, Path: slackgate.Paid, Backend: "b", Model: "m", Currency: "USD", Priced: true, MaxCostMicro: 9}
		must(b.store.OpenSpend(ctx, c, &row))
		time.Sleep(1500 * time.Millisecond)
		b.want(b.scrape(), map[string]string{
			`job_inflight{path="paid"}`: "2", `job_waiting{path="paid"}`: "1", `job_running{path="paid"}`: "1",
			`job_pool_capacity{path="paid"}`: "8", `job_pool_capacity{path="free"}`: "0", // the limit caps it
			`job_queue_age_ms{path="paid"}`: "1500", `job_smallest_slack_ms{path="paid"}`: "86500",
			`job_deadline_miss_total{path="reject"}`: "1",
		})
		row.InputTokens, row.OutputTokens, row.CostMicro, row.Known = 7, 5, 3, broker.KnownReported
		_, err = b.store.Finish(ctx, c, &broker.Finish{Outcome: broker.OutcomeTruncated, Cause: broker.CauseTruncated, FirstByteMS: 3},
			row)
		must(err)
		got := b.scrape()
		b.want(got, map[string]string{
			`job_inflight{path="paid"}`: "1", `job_outcome_total{outcome="truncated",path="paid"}`: "1", `job_outcome_total{outcome="usable",path="paid"}`: "0",
			`job_deadline_miss_total{path="paid"}`: "1", `job_deadline_miss_cause_total{cause="truncated",path="paid"}`: "1",
			`job_token_spend_total{path="paid"}`: "12", `job_tokens_total{kind="input",path="paid"}`: "7", `job_tokens_total{kind="output",path="paid"}`: "5",
			`job_cost_micro_total{currency="USD",path="paid"}`: "3", `job_attempt_total{known="reported",path="paid"}`: "1",
		})
		// Nothing that a producer or a backend can choose becomes a label.
		for series := range got {
			for _, word := range []string{"somebody", "a class", `"m"`, `"j"`} {
				if strings.Contains(series, word) {
					t.Errorf("%s carries %s", series, word)
				}
			}
		}
		// Another replica of the same store says the same.
		other := New()
		other.Share(shard.New(b.store), configured, policy)
		mine, theirs := got, (&bench{Metrics: other, t: t}).scrape()
		for _, series := range slices.Sorted(maps.Keys(mine)) {
			if strings.HasPrefix(series, "job_outcome") || strings.HasPrefix(series, "job_deadline") || strings.HasPrefix(series, "job_token") {
				if mine[series] != theirs[series] {
					t.Errorf("%s is %s here and %s there", series, mine[series], theirs[series])
				}
			}
		}
	})
}

// What became of webhooks is there from the start for each producer that has
// one, and for nobody else.
func TestWebhooks(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.Webhooks(shard.New(b.store), func() []string { return []string{"nightly"} })
		for _, r := range broker.WebhookResults {
			b.want(b.scrape(), map[string]string{`webhook_deliveries_total{producer="nightly",result="` + string(r) + `"}`: "0"})
		}
		ctx := context.Background()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(b.store.Beat(ctx, broker.Worker{ID: "w", Path: slackgate.Paid, Slots: 20}, time.Hour))
		for _, producer := range []string{"nightly", "nightly", "somebody"} {
			id := producer + strconv.Itoa(len(b.redis.Keys()))
			_, err := admit(b.store, policy(), broker.Offer{
				Job: &broker.Submission{Spec: broker.Spec{ID: id, Class: "c", Producer: producer, Text: "x", Webhook: true}}, LeftMS: 60_000,
				Bounds: [2]slackgate.Bound{{Path: slackgate.Paid, MaxInFlight: 100, MaxQueueAgeMS: slackgate.Unbounded, MaxClassQueueAgeMS: slackgate.Unbounded}},
			})
			must(err)
			_, err = b.store.CancelAll(ctx, id)
			must(err)
		}
		ends, err := b.store.TakeWebhooks(ctx, time.Minute, broker.WebhookDue{Producer: "nightly", Most: 2})
		must(err)
		for i, r := range []broker.WebhookResult{broker.WebhookDelivered, broker.WebhookFailed} {
			_, err := b.store.SettleWebhook(ctx, &ends[i], r, time.Minute)
			must(err)
		}
		got := b.scrape()
		b.want(got, map[string]string{
			`webhook_waiting{producer="nightly"}`:                             "1",
			`webhook_deliveries_total{producer="nightly",result="delivered"}`: "1",
			`webhook_deliveries_total{producer="nightly",result="failed"}`:    "1",
			`webhook_deliveries_total{producer="nightly",result="given_up"}`:  "0",
		})
		for series := range got {
			if strings.Contains(series, "somebody") {
				t.Errorf("%s", series)
			}
		}
	})
}

func TestStoreDown(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.Decided(nil, &broker.Verdict{Result: slackgate.Result{Reason: slackgate.ReasonGateUnavailable}})
		b.redis.SetError("LOADING")
		got := b.scrape()
		b.want(got, map[string]string{"leeway_store_up": "0", `job_reject_total{reason="gate_unavailable"}`: "1"})
		// A ledger that cannot be read is absent, never zero.
		for series := range got {
			if strings.HasPrefix(series, "job_deadline_miss_total") || strings.HasPrefix(series, "job_inflight") || strings.HasPrefix(series, "job_token_spend") {
				t.Errorf("%s is %s with the store down", series, got[series])
			}
		}
		b.redis.SetError("")
		b.want(b.scrape(), map[string]string{"leeway_store_up": "1", `job_inflight{path="paid"}`: "0"})
	})
}

func TestOwnNumbers(t *testing.T) {
	inBubble(t, func(b *bench) {
		for _, path := range slackgate.Paths {
			b.Decided(nil, &broker.Verdict{Result: slackgate.Result{Path: path, Reason: slackgate.Reason(path.String()), SlackMS: 13_000}})
			b.Claimed(path, 40)
			b.FirstByte(path, 700)
		}
		b.Decided(nil, &broker.Verdict{Result: slackgate.Result{Reason: slackgate.ReasonDeadline, SlackMS: -500}})
		b.want(b.scrape(), map[string]string{
			`job_decision_total{path="paid"}`: "1", `job_decision_total{path="free"}`: "1", `job_decision_total{path="reject"}`: "1",
			`job_reject_total{reason="reject_deadline"}`: "1", `job_reject_total{reason="reject_no_slack"}`: "0",
			`job_remaining_slack_ms_count{stage="admit"}`: "3", `job_remaining_slack_ms_bucket{stage="admit",le="0"}`: "1",
			`job_first_byte_ms_sum{path="paid"}`: "700", `job_queue_wait_ms_sum{path="free"}`: "40",
		})
	})
}

// The articles' names are theirs; the linter may complain of those alone.
func TestLintWithTheStore(t *testing.T) {
	inBubble(t, func(b *bench) {
		families, err := b.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		problems, err := promlint.NewWithMetricFamilies(families).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			if strings.Contains(p.Metric, "_ms") {
				continue // milliseconds are this product's contract
			}
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	})
}

func admit(s store.Shard, p [slackgate.NumPaths]broker.PoolPolicy, o broker.Offer) (broker.OfferResults, error) {
	return storetest.Admit(context.Background(), s, p, o)
}
