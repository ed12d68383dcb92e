package redisstore

import (
	"context"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"leeway/broker"
	"leeway/broker/flag"
	"leeway/broker/ledger"
	"leeway/rehearsal/redistest"
	"leeway/slackgate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// behaviour is one thing that the store does, whatever Redis it stands on.
type behaviour struct {
	name string
	run  func(t *testing.T, h *harness)
}

// behaviours is the suite. It runs over miniredis here and over a real
// redis-server behind the `server` build tag.
var behaviours = flatten(admitBehaviours, orderBehaviours, lifeBehaviours, mendBehaviours, ledgerBehaviours, booksBehaviours, budgetBehaviours, webhookBehaviours, layoutBehaviours, batchBehaviours, unreadableBehaviours)

func flatten(lists ...[]behaviour) (all []behaviour) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

func TestStoreOverMiniredis(t *testing.T) {
	for _, b := range behaviours {
		t.Run(b.name, func(t *testing.T) { b.run(t, newHarness(t, mini(t))) })
	}
}

// mini starts an embedded Redis and returns its URL.
func mini(tb testing.TB) string {
	tb.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	if err := m.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(m.Close)
	return "redis://" + m.Addr() + "/0"
}

// harness is a store of its own in a Redis, and hands on its keys.
type harness struct {
	*Store
	t   testing.TB
	url string
}

var deployments atomic.Int64

// testTimeout is far beyond what a loaded machine needs: these tests are about
// what happens, not about how fast.
const testTimeout = 10 * time.Second

func newHarness(tb testing.TB, url string) *harness {
	tb.Helper()
	h := newHarnessWith(tb, url, Options{
		Prefix: fmt.Sprintf("t%d", deployments.Add(1)), Timeout: testTimeout, Keep: time.Hour, LedgerRows: 100_000,
	})
	tb.Cleanup(h.ends)
	return h
}

func newHarnessWith(tb testing.TB, url string, o Options) *harness {
	tb.Helper()
	rdb, err := Client(url, o.Timeout)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = rdb.Close() })
	return &harness{Store: New(rdb, o), t: tb, url: url}
}

// another is a second process's store over the same keys, with a client of its
// own.
func (h *harness) another() *harness {
	return newHarnessWith(h.t, h.url, Options{
		Prefix: strings.Trim(h.prefix, "{}"), Timeout: h.timeout, Keep: time.Hour, LedgerRows: h.rows,
	})
}

var bg = context.Background()

// server is the one that holds the harness's keys.
func (h *harness) server() redis.Cmdable {
	h.t.Helper()
	node, err := h.node(bg)
	h.must(err)
	return node
}

// kept are all keys of the deployment's. KEYS is not for every user.
func (h *harness) kept() (out []string) {
	h.t.Helper()
	i := h.server().Scan(bg, 0, h.prefix+":*", 1000).Iterator()
	for i.Next(bg) {
		out = append(out, i.Val())
	}
	h.must(i.Err())
	return out
}

// ends brings every job to its end and checks what is left in Redis then.
func (h *harness) ends() {
	h.t.Helper()
	for range 3 { // a store that stood still gives leases a grace, and attempts more
		h.advance(24 * time.Hour)
		h.must(h.rdb.Del(bg, h.key("back")).Err())
		if _, err := h.Sweep(bg); broker.TroubleOf(err) == broker.TroubleLayout {
			return // nothing is this program's to mend
		} else if err != nil {
			h.t.Fatal(err)
		}
	}
	ttls := map[string]time.Duration{}
	for _, k := range h.kept() {
		ttl, err := h.rdb.PTTL(bg, k).Result()
		h.must(err)
		if ttl != -2 { // gone meanwhile
			ttls[k] = ttl
		}
	}
	redistest.Remains(h.t, strings.Trim(h.prefix, "{}"), ttls, true)
}

// fresh is the same harness over an empty Redis.
func (h *harness) fresh() *harness {
	h.ends()
	h.must(h.server().FlushAll(bg).Err())
	c := *h
	c.Store = New(h.rdb, Options{
		Prefix: fmt.Sprintf("t%d", deployments.Add(1)), Timeout: h.timeout, Keep: time.Hour, LedgerRows: h.rows,
	})
	return &c
}

// advance lets time pass: it moves every instant on record into the past by
// that much, which over a real Redis is the one way not to wait for it.
// Expiry of keys does not move.
func (h *harness) advance(d time.Duration) {
	h.t.Helper()
	ms := d.Milliseconds()
	for _, k := range h.kept() {
		switch parts := strings.Split(strings.TrimPrefix(k, h.prefix+":"), ":"); parts[0] {
		case "waiting", "age", "running", "started", "live", "workers", "spend":
			if k == h.key("spend", "open") {
				continue
			}
			members, err := h.rdb.ZRange(bg, k, 0, -1).Result()
			h.must(err)
			for _, m := range members {
				h.must(h.rdb.ZIncrBy(bg, k, float64(-ms), m).Err())
			}
		case "job":
			h.must(h.rdb.HSet(bg, k, "promise", moved(h.rdb.HGet(bg, k, "promise").Val(), -ms)).Err())
		}
	}
}

var promised = regexp.MustCompile(`"(?:accepted|deadline)_at_ms":\d+`)

// moved is a promise with its instants moved by ms.
func moved(promise string, ms int64) string {
	return promised.ReplaceAllStringFunc(promise, func(s string) string {
		name, n, _ := strings.Cut(s, ":")
		at, _ := strconv.ParseInt(n, 10, 64)
		return fmt.Sprintf("%s:%d", name, at+ms)
	})
}

func (h *harness) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// Admit offers jobs by flags that nobody has set.
func (h *harness) Admit(ctx context.Context, p [slackgate.NumPaths]broker.PoolPolicy, offers []broker.Offer) (broker.OfferResults, error) {
	return h.AdmitInTurn(ctx, flag.NewTable(0, nil), p, offers, func() error { return nil })
}

// Handback gives a job back that nobody took back.
func (h *harness) Handback(ctx context.Context, c *broker.Claim, rows ...broker.SpendRow) error {
	_, err := h.Store.Handback(ctx, c, rows...)
	return err
}

// policy of two open pools with room for everything.
func openPools() (p [slackgate.NumPaths]broker.PoolPolicy) {
	p[slackgate.Paid] = broker.PoolPolicy{Limit: 1000, FirstByteP95MS: 1200}
	p[slackgate.Free] = broker.PoolPolicy{Limit: 1000, FirstByteP95MS: 4000}
	return p
}

// live gives each pool a worker with that many slots.
func (h *harness) live(paid, free int) {
	h.t.Helper()
	for path, n := range map[slackgate.Path]int{slackgate.Paid: paid, slackgate.Free: free} {
		if n > 0 {
			h.must(h.Beat(bg, broker.Worker{ID: "w-" + path.String(), Path: path, Slots: n}, time.Hour))
		}
	}
}

// job is a job of the default class.
func testJob(id string, deadlineMS int64) *broker.Submission {
	return &broker.Submission{
		Spec: broker.Spec{
			ID: id, Class: "summary", Producer: "p", Text: "text of " + id, Prefer: [2]slackgate.Path{slackgate.Paid, slackgate.Free}, MaxOutputTokens: 100, Metadata: map[string]string{"k": id},
		},
		DeadlineInMS: deadlineMS, ReserveMS: 2000,
	}
}

// anywhere is a bound that any open pool with a worker meets.
func anywhere(path slackgate.Path) [2]slackgate.Bound {
	return [2]slackgate.Bound{{
		Path: path, MaxInFlight: slackgate.Unbounded, MaxQueueAgeMS: slackgate.Unbounded, MaxClassQueueAgeMS: slackgate.Unbounded,
	}}
}

// offerTo is an offer of a job to one pool under no rule.
func offerTo(path slackgate.Path, j *broker.Submission) broker.Offer {
	return broker.Offer{Job: j, LeftMS: j.DeadlineInMS, ReserveMS: j.ReserveMS, Bounds: anywhere(path)}
}

// put admits a job to a pool, which must take it.
func (h *harness) put(path slackgate.Path, j *broker.Submission) {
	h.t.Helper()
	got, err := h.Admit(bg, openPools(), []broker.Offer{offerTo(path, j)})
	h.must(err)
	if got.Stale || got.Jobs[0].Path != path {
		h.t.Fatalf("%s was not admitted to %s: %+v", j.ID, path, got)
	}
}

// claim takes the most urgent job of a pool, which must have one.
func (h *harness) claim(path slackgate.Path) *broker.Claim {
	h.t.Helper()
	c, met, err := h.Claim(bg, path, 1000, time.Minute)
	h.must(err)
	if c == nil {
		h.t.Fatalf("nothing to claim in %s (met %+v)", path, met)
	}
	return c
}

// started is a job admitted to paid and claimed.
func (h *harness) started(id string) *broker.Claim {
	h.t.Helper()
	h.live(10, 10)
	h.put(slackgate.Paid, testJob(id, 60_000))
	return h.claim(slackgate.Paid)
}

func usable(answer string) *broker.Finish {
	return &broker.Finish{
		Outcome: broker.OutcomeUsable, Answer: answer, Backend: "lab", FirstByteMS: 700,
		FirstRoute: "lab", FirstOutcome: "whole",
	}
}

// Cancel takes one job back.
func (h *harness) Cancel(ctx context.Context, id string) (broker.Cancellation, error) {
	got, err := h.CancelAll(ctx, id)
	if err != nil {
		return broker.Cancellation{}, err
	}
	return got[0], nil
}

// finish commits an outcome and returns the one on record. What it is told of the
// ended job is what anybody reads, but for the answer.
func (h *harness) finish(c *broker.Claim, f *broker.Finish, rows ...broker.SpendRow) (broker.Outcome, error) {
	h.t.Helper()
	ended, err := h.Finish(bg, c, f, rows...)
	if err != nil {
		return "", err
	}
	is := h.view(c.ID)
	if is.Answer = ""; !reflect.DeepEqual(ended, is) {
		h.t.Errorf("told of %+v, on record is %+v", ended, is)
	}
	return ended.Outcome, nil
}

func (h *harness) view(id string) *broker.Job {
	h.t.Helper()
	v, err := h.Get(bg, id)
	h.must(err)
	return v
}

func (h *harness) misses() []broker.MissRow {
	h.t.Helper()
	p, err := h.MissRows(bg, &ledger.Filter{}, "", broker.MaxPage)
	h.must(err)
	return p.Rows
}

func (h *harness) spent() []broker.SpendRow {
	h.t.Helper()
	p, err := h.SpendRows(bg, &ledger.Filter{}, "", broker.MaxPage)
	h.must(err)
	return p.Rows
}

func (h *harness) openRows() []broker.SpendRow {
	h.t.Helper()
	p, err := h.OpenSpendRows(bg)
	h.must(err)
	return p.Rows
}

func (h *harness) state() *broker.GateState {
	h.t.Helper()
	st, err := h.State(bg, openPools())
	h.must(err)
	return st
}

func (h *harness) totals() broker.Totals {
	h.t.Helper()
	tot, err := h.Totals(bg)
	h.must(err)
	return tot
}

// balanced checks what must hold whatever has happened: every admitted job is
// waiting, running or has one outcome, and the sums equal the rows.
func (h *harness) balanced() {
	h.t.Helper()
	tot, st := h.totals(), h.state()
	want := broker.Totals{}
	for _, r := range h.spent() {
		p := r.Path.String()
		want["attempts:"+p]++
		want["tokens:"+p+":input"] += r.InputTokens
		want["tokens:"+p+":output"] += r.OutputTokens
		want["cost_micro:"+p+":"+r.Currency] += r.CostMicro
		want["known:"+p+":"+string(r.Known)]++
		if r.MaxCostMicro > 0 {
			want["spend_tokens:"+p] += r.InputTokens + r.OutputTokens
		}
	}
	for _, r := range h.misses() {
		want["miss:"+r.Path.String()]++
		want["miss_cause:"+r.Path.String()+":"+string(r.Cause)]++
	}
	for k, n := range tot {
		switch strings.Split(k, ":")[0] {
		case "attempts", "tokens", "cost_micro", "known", "spend_tokens", "miss", "miss_cause":
			if n != want[k] {
				h.t.Errorf("total %s is %d, the rows sum to %d", k, n, want[k])
			}
			delete(want, k)
		}
	}
	for k, n := range want {
		if n != 0 {
			h.t.Errorf("rows sum to %s = %d, there is no such total", k, n)
		}
	}
	for _, path := range slackgate.Paths {
		p := &st.Pools[path]
		ended, missed := int64(0), int64(0)
		for _, o := range broker.Outcomes {
			ended += tot["outcome:"+path.String()+":"+string(o)]
			if o.Miss() {
				missed += tot["outcome:"+path.String()+":"+string(o)]
			}
		}
		if in := tot["admitted:"+path.String()]; in != ended+int64(p.InFlight()) {
			h.t.Errorf("%s: %d admitted, %d ended, %d waiting, %d running", path, in, ended, p.Waiting, p.Running)
		}
		if missed != tot["miss:"+path.String()] {
			h.t.Errorf("%s: %d outcomes are misses, the ledger has %d", path, missed, tot["miss:"+path.String()])
		}
	}
}

// score is a member's score in one of the store's sorted sets.
func (h *harness) score(member string, key ...string) int64 {
	h.t.Helper()
	s, err := h.rdb.ZScore(bg, h.key(key...), member).Result()
	h.must(err)
	return int64(s)
}

func (h *harness) ttl(key ...string) time.Duration {
	h.t.Helper()
	d, err := h.rdb.PTTL(bg, h.key(key...)).Result()
	h.must(err)
	return d
}

// between checks that a duration read off a clock that goes on lies in a range
// wide enough for any machine.
func between(t *testing.T, what string, got, lo, hi int64) {
	t.Helper()
	if got < lo || got > hi {
		t.Errorf("%s is %d, want %d..%d", what, got, lo, hi)
	}
}

const minuteMS = 60_000

func ids(n int, prefix string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = prefix + strconv.Itoa(i)
	}
	return out
}
