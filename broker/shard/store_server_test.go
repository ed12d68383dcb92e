//go:build server

package shard_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/broker/admission"
	"leeway/broker/flag"
	"leeway/broker/ledger"
	"leeway/broker/shard"
	"leeway/broker/store"
	"leeway/broker/store/storetest"
	"leeway/broker/ticket"
	"leeway/rehearsal/redistest"
	"leeway/slackgate"
)

// deployment is one of two shards, each on a Redis of its own, so that one can
// go; a producer called "limited" has a home.
type deployment struct {
	t       *testing.T
	servers [2]*redistest.Server
	stores  []store.Shard
	*shard.Store
	admitter *shard.Admitter
}

const slotsEach = 8

func start(t *testing.T) *deployment {
	d := &deployment{t: t}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	var stores []store.Shard
	var gates []*admission.Admitter
	for i, prefix := range shard.Prefixes("t", 2) {
		d.servers[i] = redistest.Start(t)
		rdb, err := storetest.Client(d.servers[i].URL(), 5*time.Second)
		must(t, err)
		t.Cleanup(func() { _ = rdb.Close() })
		store := storetest.New(rdb, storetest.Options{Prefix: prefix, Timeout: 5 * time.Second, Keep: time.Hour})
		for _, path := range slackgate.Paths {
			must(t, store.Beat(ctx, broker.Worker{ID: "w", Path: path, Slots: slotsEach}, time.Hour))
		}
		gate := newGate(rdb, store, prefix)
		wg.Go(func() { _ = gate.Run(ctx) })
		wg.Go(func() { _ = gate.Refresh(ctx) })
		stores, gates = append(stores, store), append(gates, gate)
	}
	d.stores, d.Store = stores, shard.New(stores[0], stores[1])
	d.admitter = shard.NewAdmitter(func(producer, _ string) (string, bool) { return producer, producer == "limited" }, gates...)
	d.eventually("the gates' state is known", func() bool { return gates[0].Load().Known && gates[1].Load().Known })
	return d
}

type deaf struct{}

func (deaf) Decided(*broker.Submission, *broker.Verdict) {}

func newGate(rdb redis.UniversalClient, store store.Shard, prefix string) *admission.Admitter {
	var table atomic.Pointer[flag.Table]
	table.Store(flag.NewTable(0, nil))
	belief := slackgate.FixedBelief(100, 100)
	return admission.New(admission.Options{
		Store: store, Tickets: ticket.New(rdb, prefix, 5*time.Second, time.Hour), Observer: deaf{}, Log: slog.New(slog.DiscardHandler),
		RefreshFlags: func(ctx context.Context) error {
			now, err := store.Flags(ctx)
			if err == nil {
				table.Store(now)
			}
			return err
		},
		Settings: func() admission.Settings {
			now := table.Load()
			s := admission.Settings{
				Flags: now, DispatchMS: 20, MinReserveMS: 0, HorizonMS: time.Hour.Milliseconds(),
				Class: func(class string) admission.ClassSettings {
					v := now.Apply(flag.Values{AdmitPaid: true, AdmitFree: true}, class, store.NowMS())
					return admission.ClassSettings{
						Policy: slackgate.Policy{FreeQueueAgeCutMS: slackgate.Unbounded},
						Closed: [slackgate.NumPaths]bool{slackgate.Paid: !v.AdmitPaid, slackgate.Free: !v.AdmitFree},
					}
				},
			}
			for _, path := range slackgate.Paths {
				s.Beliefs[path] = belief
				s.Pools[path] = broker.PoolPolicy{Limit: slotsEach, FirstByteP95MS: 100}
			}
			return s
		},
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (d *deployment) eventually(what string, holds func() bool) {
	d.t.Helper()
	for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			d.t.Fatalf("not seen: %s", what)
		}
	}
}

func job(producer string) *broker.Submission {
	return &broker.Submission{
		Spec: broker.Spec{
			ID: uuid.Must(uuid.NewV7()).String(), Class: "summary", Producer: producer, Text: "x", MaxOutputTokens: 10, Prefer: [2]slackgate.Path{slackgate.Paid},
		},
		DeadlineInMS: time.Hour.Milliseconds(), ReceivedAt: time.Now(),
	}
}

func (d *deployment) admit(j *broker.Submission) string {
	d.t.Helper()
	v, err := d.admitter.Submit(context.Background(), j)
	must(d.t, err)
	if !v.Admitted() {
		d.t.Fatalf("refused: %+v", v)
	}
	return v.JobID
}

func keyed(producer, key, body string) *broker.Submission {
	j := job(producer)
	j.Key = broker.IdempotencyKey{Value: key, BodyHash: body}
	return j
}

// A job lives in one shard, which its id names, and is read, listed and taken
// back through the whole.
func TestJobsOverShards(t *testing.T) {
	t.Parallel()
	d, ctx := start(t), context.Background()
	// A gate whose state has not been seen lately, on a busy machine, gets none
	// meanwhile.
	var ids []string
	var in [2]int
	for len(ids) < 40 || min(in[0], in[1]) < 5 {
		if len(ids) > 5000 {
			t.Fatalf("jobs by shard: %v", in)
		}
		id := d.admit(job("p"))
		in[shard.Of(id, 2)]++
		ids = append(ids, id)
		v, err := d.Get(ctx, id)
		must(t, err)
		if v.ID != id || v.State != broker.StateWaiting {
			t.Fatalf("%+v", v)
		}
	}
	n := len(ids)
	var policy [slackgate.NumPaths]broker.PoolPolicy
	policy[slackgate.Paid].Limit = 2 * slotsEach
	st, err := d.State(ctx, policy)
	must(t, err)
	if p := st.Pools[slackgate.Paid]; p.Waiting != n || p.Capacity != 2*slotsEach || p.Limit != 2*slotsEach || p.QueueAgeMS <= 0 {
		t.Errorf("the pool over all shards: %+v", p)
	}
	var listed []string
	for cursor, more := "", true; more; more = cursor != "" {
		jobs, next, err := d.RecentJobs(ctx, "p", false, cursor, 7)
		must(t, err)
		for _, v := range jobs {
			listed = append(listed, v.ID)
		}
		cursor = next
	}
	got := slices.Clone(listed)
	slices.Sort(got)
	slices.Sort(ids)
	if !slices.Equal(got, ids) {
		t.Errorf("%d jobs listed of %d", len(listed), n)
	}
	what, err := d.CancelAll(ctx, ids[:10]...)
	must(t, err)
	for _, w := range what {
		if w.Result != broker.CancelWaiting {
			t.Errorf("cancelled: %v", what)
			break
		}
	}
	views, err := d.Jobs(ctx, ids)
	must(t, err)
	for i, v := range views {
		if v.ID != ids[i] || (v.State == broker.StateDone) != (i < 10) {
			t.Errorf("job %d: %+v", i, v)
		}
	}
	totals, err := d.Totals(ctx)
	must(t, err)
	if totals["admitted:paid"] != int64(n) || totals["outcome:paid:cancelled"] != 10 {
		t.Errorf("totals %v", totals)
	}
	books, err := d.Overview(ctx)
	must(t, err)
	report, err := d.CheckLedgers(ctx)
	must(t, err)
	if !books.Balanced || !report.Balanced || report.Totals["admitted:paid"] != int64(n) {
		t.Errorf("books %+v, report %+v", books, report)
	}
	if _, err := d.Get(ctx, uuid.NewString()); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("an id without a shard: %v", err)
	}
}

// One key, one job, wherever it went; what is limited has one home, keys and
// batches with it.
func TestHomes(t *testing.T) {
	t.Parallel()
	d, ctx := start(t), context.Background()
	used := map[int]bool{}
	for i := range 16 {
		key := fmt.Sprintf("k%d", i)
		id := d.admit(keyed("p", key, "a"))
		used[shard.Of(id, 2)] = true
		again, err := d.admitter.Submit(ctx, keyed("p", key, "a"))
		must(t, err)
		if again.JobID != id || !again.Repeated {
			t.Errorf("key %s: %s, then %+v", key, id, again)
		}
		if _, err := d.admitter.Submit(ctx, keyed("p", key, "b")); !errors.Is(err, broker.ErrKeyConflict) {
			t.Errorf("another body: %v", err)
		}
		known, err := d.admitter.Known(ctx, "p", broker.IdempotencyKey{Value: key, BodyHash: "a"})
		if err != nil || known.JobID != id {
			t.Errorf("known: %+v, %v", known, err)
		}
	}
	if len(used) != 2 {
		t.Errorf("16 keys in shards %v", used)
	}
	if _, err := d.admitter.Known(ctx, "p", broker.IdempotencyKey{Value: "none", BodyHash: "a"}); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("an unknown key: %v", err)
	}
	home := shard.Of(d.admit(job("limited")), 2)
	for i := range 10 {
		if at := shard.Of(d.admit(keyed("limited", fmt.Sprint(i), "a")), 2); at != home {
			t.Errorf("key %d of a limited producer went to shard %d, its home is %d", i, at, home)
		}
		if at := shard.Of(d.admitter.PlaceBatch(fmt.Sprint(i), "limited", fmt.Sprint(i)), 2); at != home {
			t.Errorf("its batch went to %d", at)
		}
	}
	for i := range 16 {
		id := fmt.Sprint(i)
		batch := d.admitter.PlaceBatch(id, "p", id)
		if again := d.admitter.PlaceBatch(id, "p", id); again != batch {
			t.Errorf("one key, two batches: %s and %s", batch, again)
		}
		run, err := d.OpenBatch(ctx, batch, "p", false, 100)
		must(t, err)
		for line, producer := range []string{"p", "limited"} {
			j := job(producer)
			at := broker.LineAt(run, line)
			j.Place = broker.BatchPlace{Batch: batch, Line: broker.LineName("", at), At: at}
			err := d.admitter.Place(j)
			if wrong := producer == "limited" && shard.Of(batch, 2) != home; wrong != (err != nil) {
				t.Errorf("%s in shard %d: %v", producer, shard.Of(batch, 2), err)
			}
			if err != nil {
				continue
			}
			if got := d.admit(j); shard.Of(got, 2) != shard.Of(batch, 2) {
				t.Errorf("job %s of batch %s", got, batch)
			}
		}
		b, err := d.Batch(ctx, batch)
		must(t, err)
		lines, err := d.Lines(ctx, batch, 0, 10, true)
		must(t, err)
		if b.Admitted() != int64(len(lines)) || lines[0].Job.BatchID != batch {
			t.Errorf("%+v, %d lines", b, len(lines))
		}
	}
	all, _, err := d.RecentBatches(ctx, "", true, "", 100)
	must(t, err)
	if len(all) != 16 {
		t.Errorf("%d batches listed", len(all))
	}
}

// Rows of both shards come page by page in their order, none twice.
func TestLedgerPages(t *testing.T) {
	t.Parallel()
	d, ctx := start(t), context.Background()
	want := map[string]bool{}
	for i := range 25 {
		j := job("p")
		j.ID = shard.Mark(j.ID, i%2, 2)
		j.DeadlineInMS, j.ReserveMS = 100, 100
		v, err := d.admitter.Submit(ctx, j)
		must(t, err)
		if v.Reason != slackgate.ReasonDeadline {
			t.Fatalf("%+v", v)
		}
		want[v.JobID] = true
	}
	var last int64
	ids, in := map[string]bool{}, map[int]int{}
	for cursor, more := "", true; more; more = cursor != "" {
		p, err := d.MissRows(ctx, &ledger.Filter{}, cursor, 4)
		must(t, err)
		for _, r := range p.Rows {
			if !want[r.JobID] || ids[r.ID] || ledger.IDTimeMS(r.ID) < last {
				t.Errorf("row %+v", r)
			}
			delete(want, r.JobID)
			ids[r.ID], last = true, ledger.IDTimeMS(r.ID)
			in[shard.Of(r.ID, 2)]++
		}
		cursor = p.Next
	}
	if len(want) > 0 || in[0] == 0 || in[1] == 0 {
		t.Errorf("%d rows missing; %v", len(want), in)
	}
	var misses int64
	now := ledger.MinuteOf(d.NowMS())
	must(t, d.Minutes(ctx, now-2, now+1, func(m ledger.MinuteSums) error {
		for _, v := range m.Sums {
			var n int64
			_, err := fmt.Sscan(v, &n)
			must(t, err)
			misses += n
		}
		return nil
	}))
	if misses != 25 {
		t.Errorf("the roll-ups sum to %d", misses)
	}
}

// A flag is set in every shard. One that a shard has not heard of is put there
// from the first.
func TestFlagsInEveryShard(t *testing.T) {
	t.Parallel()
	d, ctx := start(t), context.Background()
	set := func(s interface {
		SetFlag(ctx context.Context, n flag.Name, class, value, by, reason string, hold time.Duration) error
	}, value string, hold time.Duration,
	) {
		must(t, s.SetFlag(ctx, flag.AdmitPaid, "", value, "somebody", "a test", hold))
	}
	closed := func(i int) bool {
		table, err := d.stores[i].Flags(ctx)
		must(t, err)
		return !table.Apply(flag.Values{AdmitPaid: true}, "", d.NowMS()).AdmitPaid
	}
	align := func(want int) {
		t.Helper()
		got, err := d.Align(ctx)
		must(t, err)
		if got != want {
			t.Errorf("%d flags set, want %d", got, want)
		}
	}
	d.admit(job("p"))
	set(d, "0", 0)
	for range 8 {
		v, err := d.admitter.Submit(ctx, job("p"))
		must(t, err)
		if v.Reason != slackgate.ReasonClosed {
			t.Errorf("after the flag: %+v", v)
		}
	}
	align(0)
	set(d.stores[0], "1", 0)
	if closed(0) || !closed(1) {
		t.Error("the first alone has heard")
	}
	align(1)
	align(0)
	set(d.stores[0], "", 0)
	set(d.stores[1], "0", time.Hour)
	align(1)
	if closed(0) || closed(1) {
		t.Error("it is not set in the first")
	}
	set(d, "0", time.Hour)
	align(0)
	set(d.stores[0], "0", 0)
	align(1)
	if !closed(0) || !closed(1) {
		t.Error("it is set in the first")
	}
	// One that has changed since it was read is left.
	read, err := d.stores[1].Flags(ctx)
	must(t, err)
	set(d, "1", 0)
	ok, err := d.stores[1].AlignFlag(ctx, read.Version, &flag.Entry{Name: flag.AdmitPaid, Value: "0", Reason: "what was read"}, 0)
	must(t, err)
	if ok || closed(1) {
		t.Error("a change was undone")
	}
}

// A shard that is gone takes with it what is its own, and no more.
func TestOneShardGone(t *testing.T) {
	t.Parallel()
	d, ctx := start(t), context.Background()
	byShard := map[int]string{}
	for i := 0; len(byShard) < 2; i++ {
		byShard[shard.Of(d.admit(keyed("p", fmt.Sprint(i), "a")), 2)] = fmt.Sprint(i)
	}
	d.servers[1].Kill()
	d.eventually("jobs go where there is a gate", func() bool {
		for range 5 {
			if v, err := d.admitter.Submit(ctx, job("p")); err != nil || !v.Admitted() {
				return false
			}
		}
		return true
	})
	if v, err := d.admitter.Submit(ctx, keyed("p", byShard[0], "a")); err != nil || !v.Repeated {
		t.Errorf("a key of the shard that is there: %+v, %v", v, err)
	}
	if _, err := d.admitter.Submit(ctx, keyed("p", byShard[1], "a")); !errors.Is(err, broker.ErrUnavailable) {
		t.Errorf("a key of the one that is gone: %v", err)
	}
	if _, _, err := d.RecentJobs(ctx, "p", false, "", 10); !errors.Is(err, broker.ErrUnavailable) {
		t.Errorf("a list without a shard's part: %v", err)
	}
	if err := d.Writable(ctx); err != nil {
		t.Errorf("one shard takes writes: %v", err)
	}
	v, st, err := d.admitter.DryRun(ctx, job("p"))
	if !v.Admitted() || st != nil || !errors.Is(err, broker.ErrUnavailable) {
		t.Errorf("a dry run: %+v, %v, %v", v, st, err)
	}
	d.servers[0].Kill()
	if err := d.Writable(ctx); !errors.Is(err, broker.ErrUnavailable) {
		t.Errorf("none takes writes: %v", err)
	}
}

// Ends are told whichever shard they lie in, also while another is away.
func TestWebhooksOverShards(t *testing.T) {
	t.Parallel()
	d, ctx := start(t), context.Background()
	var in [2]int
	end := func(key string) {
		j := keyed("p", key, "a")
		j.Webhook = true
		id := d.admit(j)
		in[shard.Of(id, 2)]++
		_, err := d.CancelAll(ctx, id)
		must(t, err)
	}
	told := func(most int) int {
		t.Helper()
		due, err := d.DueWebhooks(ctx, broker.WebhookDue{Producer: "p", Most: most}, broker.WebhookDue{Producer: "nobody", Most: 1})
		must(t, err)
		if len(due) != 1 || due[0].Producer != "p" {
			t.Fatalf("due: %+v", due)
		}
		ends, err := d.TakeWebhooks(ctx, time.Minute, due...)
		must(t, err)
		for i := range ends {
			r, err := d.SettleWebhook(ctx, &ends[i], broker.WebhookDelivered, 0)
			if must(t, err); r != broker.WebhookDelivered {
				t.Errorf("settled as %q", r)
			}
		}
		return len(ends)
	}
	for i := 0; min(in[0], in[1]) < 2; i++ {
		end(fmt.Sprint(i))
	}
	all := in[0] + in[1]
	waiting, err := d.WebhooksWaiting(ctx, []string{"p", "nobody"})
	if must(t, err); waiting["p"] != int64(all) {
		t.Errorf("%v wait, want %d", waiting, all)
	}
	if n := told(3); n != 3 {
		t.Errorf("%d told, want 3", n)
	}
	if n := told(1000); n != all-3 {
		t.Errorf("%d told, want the other %d", n, all-3)
	}
	waiting, err = d.WebhooksWaiting(ctx, []string{"p"})
	if must(t, err); waiting["p"] != 0 {
		t.Errorf("%v wait at the end", waiting)
	}
	d.servers[1].Kill()
	for round := range 2 { // whichever is asked first
		for i, before := 0, in[0]; in[0] == before; i++ {
			key := fmt.Sprint("round ", round, i)
			at := keyed("p", key, "a")
			must(t, d.admitter.Place(at))
			if shard.Of(at.ID, 2) == 0 {
				end(key)
			}
		}
		if n := told(1000); n != 1 {
			t.Fatalf("%d told of the shard that is there, want 1", n)
		}
	}
	d.servers[0].Kill()
	if _, err := d.DueWebhooks(ctx, broker.WebhookDue{Producer: "p", Most: 1}); !errors.Is(err, broker.ErrUnavailable) {
		t.Errorf("with both away: %v", err)
	}
	if _, err := d.TakeWebhooks(ctx, time.Minute, broker.WebhookDue{Producer: "p", Most: 1}); !errors.Is(err, broker.ErrUnavailable) {
		t.Errorf("with both away: %v", err)
	}
}
