package redisstore

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"leeway/broker"
	"leeway/slackgate"
)

var admitBehaviours = []behaviour{
	{"decision and script agree", agree},
	{"an admission is record, promise and text in one", admissionIsWhole},
	{"a batch sees what it has itself admitted", batchSeesItself},
	{"a stale offer does nothing", staleDoesNothing},
	{"a late offer is not decided", lateOfferIsNotDecided},
	{"no slack is a miss on path reject", noSlackIsMiss},
	{"capacity is the living slots within the limit", capacity},
	{"a job needs a ticket while a slot is free that none waits for", ticketsForFreeSlots},
	{"a claim that ended frees no place twice", releasedCounter},
	{"a ladder of nothing admits nothing", emptyLadder},
	{"another pool takes a claimed job", heldOffer},
}

// crowd is a pool's random state.
type crowd struct {
	limit, slots int
	closed       bool
	p95, hold    int64
	running      []int64 // ages
	endedSince   int     // running at the snapshot, ended since
	claimedSince int
	waiting      []waiter
}

type waiter struct {
	class          string
	slackMS, ageMS int64
}

var classes = []string{"a", "b"}

// ladderReserveMS is the reserve that the ladders here are made for.
const ladderReserveMS = 1000

// drawCrowd draws a pool. On a grid of 500 ms instants often fall exactly on
// each other, which tells < from <=.
func drawCrowd(t *rapid.T, name string, grid bool) crowd {
	step := int64(1)
	if grid {
		step = 500
	}
	c := crowd{
		limit: rapid.IntRange(0, 6).Draw(t, name+" limit"),
		slots: rapid.SampledFrom([]int{0, 1, 2, 3, 8}).Draw(t, name+" slots"), closed: rapid.IntRange(0, 9).Draw(t, name+" closed") == 0,
		p95: rapid.SampledFrom([]int64{step, 500, 1000, 4000}).Draw(t, name+" p95"),
	}
	c.hold = c.p95 + rapid.SampledFrom([]int64{0, 0, 2000}).Draw(t, name+" tail")
	c.running = rapid.SliceOfN(multiples(step, 0, 2*c.hold), 0, 4).Draw(t, name+" running")
	c.endedSince = rapid.IntRange(0, len(c.running)).Draw(t, name+" ended since")
	c.claimedSince = rapid.IntRange(0, 2).Draw(t, name+" claimed since")
	c.waiting = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) waiter {
		return waiter{
			class:   rapid.SampledFrom(classes).Draw(t, "class"),
			slackMS: multiples(step, -1000, 20_000).Draw(t, "slack"),
			ageMS:   multiples(step, 0, 12_000).Draw(t, "age"),
		}
	}), 0, 12).Draw(t, name+" waiting")
	return c
}

func multiples(step, lo, hi int64) *rapid.Generator[int64] {
	return rapid.Map(rapid.Int64Range(lo/step, hi/step), func(n int64) int64 { return n * step })
}

// lay writes a crowd, as it is at the snapshot, into the store.
func (h *harness) lay(path slackgate.Path, c *crowd, now int64) {
	name := path.String()
	_, err := h.rdb.Pipelined(bg, func(p redis.Pipeliner) error {
		for i, w := range c.waiting {
			id := fmt.Sprintf("%s-w%d", name, i)
			p.ZAdd(bg, h.key("waiting", name), redis.Z{Score: float64(now + w.slackMS), Member: fmt.Sprintf("%016d:%s:%s", i, w.class, id)})
			p.ZAdd(bg, h.key("age", name), redis.Z{Score: float64(now - w.ageMS), Member: id})
			p.ZAdd(bg, h.key("age", name, w.class), redis.Z{Score: float64(now - w.ageMS), Member: id})
		}
		for i, age := range c.running {
			id := fmt.Sprintf("%s-r%d", name, i)
			p.ZAdd(bg, h.key("running", name), redis.Z{Score: float64(now + minuteMS), Member: id})
			p.ZAdd(bg, h.key("started", name), redis.Z{Score: float64(now - age), Member: id})
		}
		if c.slots > 0 {
			p.ZAdd(bg, h.key("workers", name), redis.Z{Score: float64(now + minuteMS), Member: fmt.Sprintf("w|%d", c.slots)})
			p.ZAdd(bg, h.key("workers", name), redis.Z{Score: float64(now - 1), Member: "dead|100"})
		}
		return nil
	})
	h.must(err)
}

// since is what happens between the snapshot and the offers.
func (h *harness) since(path slackgate.Path, c *crowd) {
	name := path.String()
	for i := range c.endedSince {
		id := fmt.Sprintf("%s-r%d", name, i)
		h.must(h.rdb.ZRem(bg, h.key("running", name), id).Err())
		h.must(h.rdb.ZRem(bg, h.key("started", name), id).Err())
		h.must(h.rdb.Incr(bg, h.key("released", name)).Err())
	}
	for range min(c.claimedSince, len(c.waiting)) {
		first, err := h.rdb.ZPopMin(bg, h.key("waiting", name)).Result()
		h.must(err)
		member := first[0].Member.(string)
		id, class := member[19:], member[17:18]
		h.must(h.rdb.ZRem(bg, h.key("age", name), id).Err())
		h.must(h.rdb.ZRem(bg, h.key("age", name, class), id).Err())
		h.must(h.rdb.ZAdd(bg, h.key("running", name), redis.Z{Score: math.MaxInt32, Member: id}).Err())
	}
}

// scores counts waiting jobs as the gate's own check does.
type scores struct {
	now int64
	at  []int64
}

func (s *scores) Before(atMS int64) (n int64) {
	for _, v := range s.at {
		if atMS == slackgate.Unbounded || v < s.now+atMS {
			n++
		}
	}
	return n
}

func (s *scores) upTo(slack int64) (n int) {
	for _, v := range s.at {
		if v <= s.now+slack {
			n++
		}
	}
	return n
}

// model is what the test itself knows of a pool.
type model struct {
	scores
	running int
	oldest  map[string]int64 // accepted, per class and "" for all
}

func (m *model) age(class string) int64 {
	if at, ok := m.oldest[class]; ok {
		return max(0, m.now-at)
	}
	return 0
}

func (m *model) join(class string, slack int64) {
	m.at = append(m.at, m.now+slack)
	for _, k := range []string{"", class} {
		if at, ok := m.oldest[k]; !ok || m.now < at {
			m.oldest[k] = m.now
		}
	}
}

// agree: on random states and random offers, what the script did is what
// slackgate.Decide says of the state that the script reports, and that state
// is the one the test worked out for itself.
func agree(t *testing.T, h *harness) { agreeOn(t, h, false) }

// With the clock standing still, exact boundaries are met.
func TestDecisionAndScriptAgreeToTheMillisecond(t *testing.T) {
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	m.SetTime(time.UnixMilli(1_700_000_000_000))
	agreeOn(t, newHarness(t, "redis://"+m.Addr()+"/0"), true)
}

func agreeOn(t *testing.T, h0 *harness, grid bool) {
	t.Helper()
	step, dispatch, longest, most := int64(1), int64(20), int64(25_000), 4
	if grid {
		step, dispatch, longest, most = 500, 0, 8000, 12
	}
	rapid.Check(t, func(rt *rapid.T) {
		h := h0.fresh()
		now := h.state().NowMS
		policy := slackgate.Policy{
			Rule:              rapid.SampledFrom([]slackgate.Rule{slackgate.Seed, slackgate.Predictive}).Draw(rt, "rule"),
			FreeQueueAgeCutMS: rapid.SampledFrom([]int64{0, 1, 3000, 8000, slackgate.Unbounded}).Draw(rt, "cut"),
		}
		var pools [slackgate.NumPaths]broker.PoolPolicy
		var crowds [slackgate.NumPaths]crowd
		for _, path := range slackgate.Paths {
			crowds[path] = drawCrowd(rt, path.String(), grid)
			h.lay(path, &crowds[path], now)
			pools[path] = broker.PoolPolicy{Limit: crowds[path].limit, Closed: crowds[path].closed, FirstByteP95MS: crowds[path].p95}
		}
		st, err := h.State(bg, pools)
		h.must(err)
		if policy.Rule == slackgate.Predictive {
			for _, path := range slackgate.Paths {
				c := &crowds[path]
				l := new(slackgate.Ladder)
				l.Build(&slackgate.LadderInput{
					Capacity: st.Pools[path].Capacity, RunningAgesMS: st.RunningAges[path],
					Belief: slackgate.FixedBelief(c.p95, c.hold), DispatchMS: dispatch, ReserveMS: ladderReserveMS, HorizonMS: 3600_000,
				})
				pools[path].Ladder, pools[path].Released = l, st.Released[path]
				h.since(path, c)
			}
		}
		var known slackgate.Snapshot
		for _, path := range slackgate.Paths {
			known.Pools[path] = slackgate.PoolState{Limit: pools[path].Limit, FirstByteP95MS: pools[path].FirstByteP95MS, Ladder: pools[path].Ladder}
		}
		var offers []broker.Offer
		for i := range rapid.IntRange(1, most).Draw(rt, "offers") {
			j := &broker.Submission{
				Spec: broker.Spec{
					ID: fmt.Sprintf("new%d", i), Class: rapid.SampledFrom(classes).Draw(rt, "class"), Text: "x", Prefer: rapid.SampledFrom([][2]slackgate.Path{
						{slackgate.Paid, slackgate.Free}, {slackgate.Free, slackgate.Paid}, {slackgate.Paid}, {slackgate.Free},
					}).Draw(rt, "prefer"), FirstByteOnly: rapid.Bool().Draw(rt, "first byte only"),
				},
				DeadlineInMS: max(1, multiples(step, 0, longest).Draw(rt, "deadline")), ReserveMS: rapid.SampledFrom([]int64{0, ladderReserveMS, 2000}).Draw(rt, "reserve"),
			}
			slack := j.DeadlineInMS - j.ReserveMS
			o := broker.Offer{
				Job: j, LeftMS: j.DeadlineInMS, ReserveMS: j.ReserveMS, Miss: slack <= 0,
				Bounds: slackgate.Bounds(&known, j.Gate(0, j.ReserveMS), policy, slack),
			}
			for k := range o.Bounds { // a closed pool is not asked
				if pools[o.Bounds[k].Path].Closed {
					o.Bounds[k] = slackgate.Bound{}
				}
			}
			offers = append(offers, o)
		}
		got, err := h.Admit(bg, pools, offers)
		h.must(err)

		// The model is read back afterwards with the newcomers taken out, and
		// they join it one by one.
		var models [slackgate.NumPaths]*model
		for _, path := range slackgate.Paths {
			models[path] = h.modelWithout(path, got.NowMS, offers)
			if pools[path].Ladder != nil && len(pools[path].Ladder.Rungs()) > 0 {
				models[path].running += crowds[path].endedSince
			}
		}
		for i := range offers {
			o, a := &offers[i], &got.Jobs[i]
			for _, path := range slackgate.Paths {
				p, m := &a.Pools[path], models[path]
				if p.Waiting != len(m.at) || p.Running != m.running || p.QueueAgeMS != m.age("") || p.ClassQueueAgeMS != m.age(o.Job.Class) {
					rt.Fatalf("offer %d, %s: the script saw %d waiting, %d running, age %d, class age %d; it was %d, %d, %d, %d", i, path,
						p.Waiting, p.Running, p.QueueAgeMS, p.ClassQueueAgeMS, len(m.at), m.running, m.age(""), m.age(o.Job.Class))
				}
			}
			for k := range o.Bounds {
				b := &o.Bounds[k]
				asked := k == 0 || a.Path == slackgate.Reject || a.Path == b.Path // the second place only if the first refused
				if !b.Laddered || !asked {
					continue
				}
				p, m := &a.Pools[b.Path], models[b.Path]
				if want := b.Check(m.running, &m.scores); p.Break != want || p.Ahead != m.upTo(o.SlackMS()) {
					rt.Fatalf("offer %d, %s: the script found %+v with %d ahead, the gate %+v with %d", i, b.Path, p.Break, p.Ahead, want, m.upTo(o.SlackMS()))
				}
			}
			res := slackgate.Decide(&slackgate.Snapshot{Pools: a.Pools}, o.Job.Gate(got.NowMS+o.LeftMS, o.ReserveMS), policy, got.NowMS)
			if res.Path != a.Path {
				rt.Fatalf("offer %d (slack %d): the script says %s, the rule %s (%s)\n%+v", i, o.SlackMS(), a.Path, res.Path, res.Reason, a.Pools)
			}
			if a.Path != slackgate.Reject {
				if policy.Rule == slackgate.Predictive {
					onRecord(rt, h, o.Job, &res)
				}
				models[a.Path].join(o.Job.Class, o.SlackMS())
			}
		}
	})
}

// onRecord holds that what the record of an admitted job says of its place is
// what the rule says. The rungs of a small pool stand one place apart.
func onRecord(t *rapid.T, h *harness, j *broker.Submission, r *slackgate.Result) {
	got := h.view(j.ID).Admission
	if got.PredictedWaitMS != r.PredictedWaitMS {
		t.Fatalf("%s: a predicted wait of %d ms on record, by the rule it is %d", j.ID, got.PredictedWaitMS, r.PredictedWaitMS)
	}
	// The ladder's need is that of a job with its reserve, which counts the last byte.
	need := r.NeedMS[r.Path]
	if got.NeedMS < need || got.NeedMS > need && j.ReserveMS == ladderReserveMS && !j.FirstByteOnly {
		t.Fatalf("%s: a need of %d ms on record, by the rule it is %d", j.ID, got.NeedMS, need)
	}
}

// modelWithout reads a pool and leaves out the jobs just offered.
func (h *harness) modelWithout(path slackgate.Path, now int64, offers []broker.Offer) *model {
	name := path.String()
	m := &model{scores: scores{now: now}, oldest: map[string]int64{}}
	var mine []string
	for i := range offers {
		mine = append(mine, offers[i].Job.ID)
	}
	zs, err := h.rdb.ZRangeWithScores(bg, h.key("waiting", name), 0, -1).Result()
	h.must(err)
	for _, z := range zs {
		if !slices.Contains(mine, z.Member.(string)[19:]) {
			m.at = append(m.at, int64(z.Score))
		}
	}
	for key, of := range map[string]string{"": "", ":a": "a", ":b": "b"} {
		zs, err := h.rdb.ZRangeWithScores(bg, h.key("age", name)+key, 0, -1).Result()
		h.must(err)
		for _, z := range zs {
			if !slices.Contains(mine, z.Member.(string)) {
				m.oldest[of] = int64(z.Score)
				break
			}
		}
	}
	n, err := h.rdb.ZCard(bg, h.key("running", name)).Result()
	h.must(err)
	m.running = int(n)
	return m
}

func admissionIsWhole(t *testing.T, h *harness) {
	h.live(1, 1)
	h.put(slackgate.Free, testJob("j", 90_000))
	v := h.view("j")
	if v.State != broker.StateWaiting || v.Path != slackgate.Free || v.Class != "summary" || v.Producer != "p" ||
		v.Metadata["k"] != "j" || v.ReserveMS != 2000 || v.DeadlineAtMS-v.AcceptedAtMS != 90_000 || v.Admission.SlackMS != 88_000 {
		t.Errorf("view %+v", v)
	}
	if got := h.score("0000000000000001:summary:j", "waiting", "free"); got != v.DeadlineAtMS-2000 {
		t.Errorf("urgency is %d, want deadline - reserve = %d", got, v.DeadlineAtMS-2000)
	}
	if text, _ := h.rdb.Get(bg, h.key("text", "j")).Result(); text != "text of j" {
		t.Errorf("text %q", text)
	}
	// Record and text outlive the deadline by an hour if nobody ends the job.
	for _, key := range []string{"job", "text"} {
		between(t, key+"'s TTL", h.ttl(key, "j").Milliseconds(), 3600_000, 3690_000)
	}
	if _, err := h.Get(bg, "nobody"); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("an unknown job gives %v", err)
	}
}

func batchSeesItself(t *testing.T, h *harness) {
	h.live(10, 10)
	pools := openPools()
	pools[slackgate.Paid].Limit = 3
	policy := slackgate.Policy{Rule: slackgate.Seed}
	known := slackgate.Snapshot{}
	known.Pools[slackgate.Paid] = slackgate.PoolState{Limit: 3, FirstByteP95MS: 1200}
	var offers []broker.Offer
	for _, id := range ids(10, "j") {
		j := testJob(id, 15_000)
		j.Prefer = [2]slackgate.Path{slackgate.Paid}
		offers = append(offers, broker.Offer{Job: j, LeftMS: 15_000, ReserveMS: 2000, Bounds: slackgate.Bounds(&known, j.Gate(0, j.ReserveMS), policy, 13_000)})
	}
	got, err := h.Admit(bg, pools, offers)
	h.must(err)
	for i := range got.Jobs {
		want := slackgate.Reject
		if i < 3 {
			want = slackgate.Paid
		}
		if got.Jobs[i].Path != want || got.Jobs[i].Pools[slackgate.Paid].Waiting != min(i, 3) {
			t.Errorf("offer %d: %s with %d waiting", i, got.Jobs[i].Path, got.Jobs[i].Pools[slackgate.Paid].Waiting)
		}
	}
	h.balanced()
}

// Of a deadline that is near much may run down on the way here, of one that is far
// next to nothing.
func lateOfferIsNotDecided(t *testing.T, h *harness) {
	h.live(2, 0)
	h.state() // the clock
	short, long := offerTo(slackgate.Paid, testJob("short", 300)), offerTo(slackgate.Paid, testJob("long", 60_000))
	short.At = time.Now().Add(-lateAfter - 10*time.Millisecond)
	long.At = short.At
	dueAtMS := h.atMS(long.At) + 60_000
	got, err := h.Admit(bg, openPools(), []broker.Offer{short, long})
	h.must(err)
	if got.Jobs[0].Bound != broker.OfferLate || got.Jobs[0].Path != slackgate.Reject {
		t.Errorf("%+v, want late", got.Jobs[0])
	}
	if _, err := h.Get(bg, "short"); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("the late job is on record: %v", err)
	}
	if v := h.view("long"); v.DeadlineAtMS != dueAtMS || got.Jobs[1].DeadlineAtMS != dueAtMS {
		t.Errorf("due at %d, said %d, want %d", v.DeadlineAtMS, got.Jobs[1].DeadlineAtMS, dueAtMS)
	}
	h.balanced()
}

func staleDoesNothing(t *testing.T, h *harness) {
	h.live(1, 1)
	// A caller whose clock reading says that it gave up long ago.
	h.saw(time.Now(), h.state().NowMS-2*testTimeout.Milliseconds())
	miss := offerTo(slackgate.Paid, testJob("m", 1000))
	miss.Miss = true
	got, err := h.Admit(bg, openPools(), []broker.Offer{offerTo(slackgate.Paid, testJob("j", 60_000)), miss})
	h.must(err)
	if !got.Stale || got.Jobs != nil {
		t.Fatalf("%+v, want stale", got)
	}
	if _, err := h.Get(bg, "j"); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("the job is on record: %v", err)
	}
	if n := len(h.misses()); n != 0 || h.state().Pools[slackgate.Paid].Waiting != 0 || len(h.totals()) != 0 {
		t.Errorf("a stale offer left %d misses, %+v", n, h.totals())
	}
	// The reply itself has set the clock right.
	h.put(slackgate.Paid, testJob("j", 60_000))
}

func TestGiveUpIsAheadOfTheTimeout(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		10 * time.Millisecond: 7500 * time.Microsecond, 40 * time.Millisecond: 30 * time.Millisecond, 250 * time.Millisecond: 240 * time.Millisecond,
	} {
		if got := New(nil, Options{Prefix: "x", Timeout: timeout}).giveUpAfter(); got != want {
			t.Errorf("timeout %v: gives up after %v, want %v", timeout, got, want)
		}
	}
}

func noSlackIsMiss(t *testing.T, h *harness) {
	h.live(1, 1)
	j := testJob("j", 1500)
	got, err := h.Admit(bg, openPools(), []broker.Offer{{Job: j, LeftMS: 1500, ReserveMS: 2000, Miss: true}})
	h.must(err)
	rows := h.misses()
	if got.Jobs[0].Path != slackgate.Reject || len(rows) != 1 {
		t.Fatalf("%+v, rows %+v", got, rows)
	}
	r := rows[0]
	if r.Path != slackgate.Reject || r.Cause != broker.CauseNoSlack || r.Outcome != broker.OutcomeExpired || r.JobID != "j" ||
		r.Class != "summary" || r.Producer != "p" || r.SlackMS != -500 || r.DeadlineAtMS != got.NowMS+1500 || r.FirstByteMS != -1 {
		t.Errorf("row %+v", r)
	}
	if _, err := h.Get(bg, "j"); !errors.Is(err, broker.ErrNotFound) {
		t.Error("a refused job is on record")
	}
	if h.totals()["miss:reject"] != 1 {
		t.Errorf("totals %+v", h.totals())
	}
}

func capacity(t *testing.T, h *harness) {
	paid := func() int { return h.state().Pools[slackgate.Paid].Capacity }
	if paid() != 0 {
		t.Errorf("capacity %d with no worker", paid())
	}
	a, b := broker.Worker{ID: "a", Path: slackgate.Paid, Slots: 3}, broker.Worker{ID: "b", Path: slackgate.Paid, Slots: 5}
	h.must(h.Beat(bg, a, time.Minute))
	h.must(h.Beat(bg, b, 2*time.Minute))
	h.must(h.Beat(bg, b, 2*time.Minute)) // the same worker counts once
	if paid() != 8 || h.state().Pools[slackgate.Free].Capacity != 0 {
		t.Errorf("capacity %d of 3 + 5", paid())
	}
	capped := openPools()
	capped[slackgate.Paid].Limit = 6
	st, err := h.State(bg, capped)
	h.must(err)
	if st.Pools[slackgate.Paid].Capacity != 6 {
		t.Errorf("capacity %d under a limit of 6", st.Pools[slackgate.Paid].Capacity)
	}
	h.advance(61 * time.Second)
	if paid() != 5 {
		t.Errorf("capacity %d after a's heartbeat lapsed", paid())
	}
	h.must(h.Leave(bg, b))
	if paid() != 0 {
		t.Errorf("capacity %d after b left", paid())
	}
	// With no living worker the pool is closed at the door and at the claim.
	got, err := h.Admit(bg, openPools(), []broker.Offer{offerTo(slackgate.Paid, testJob("j", 60_000))})
	h.must(err)
	if got.Jobs[0].Path != slackgate.Reject || got.Jobs[0].Pools[slackgate.Paid].Capacity != 0 {
		t.Errorf("admitted to a pool without workers: %+v", got.Jobs[0])
	}
	c, met, err := h.Claim(bg, slackgate.Paid, 6, time.Minute)
	h.must(err)
	if c != nil || !met.Full {
		t.Errorf("claim %v, met %+v without workers", c, met)
	}
}

// A job claimed and one ended between the snapshot and the script: neither the
// worker that came free nor the one that was taken may be counted twice.
func releasedCounter(t *testing.T, h *harness) {
	h.live(1, 0)
	h.put(slackgate.Paid, testJob("running", 60_000))
	running := h.claim(slackgate.Paid)
	policy := slackgate.Policy{Rule: slackgate.Predictive, FreeQueueAgeCutMS: slackgate.Unbounded}
	pools := openPools()
	pools[slackgate.Paid].Limit = 1
	st, err := h.State(bg, pools)
	h.must(err)
	l := new(slackgate.Ladder)
	// One worker of 1,000 ms: two jobs fit before 2,500 ms, the running one
	// among them.
	l.Build(&slackgate.LadderInput{Capacity: 1, RunningAgesMS: []int64{0}, Belief: slackgate.FixedBelief(1000, 1000), ReserveMS: 0, HorizonMS: 60_000})
	pools[slackgate.Paid].Ladder, pools[slackgate.Paid].Released = l, st.Released[slackgate.Paid]
	offer := func(id string) broker.OfferResult {
		t.Helper()
		j := testJob(id, 2500)
		j.ReserveMS, j.Prefer = 0, [2]slackgate.Path{slackgate.Paid}
		known := slackgate.Snapshot{}
		known.Pools[slackgate.Paid] = slackgate.PoolState{Limit: 1, FirstByteP95MS: 1000, Ladder: l}
		got, err := h.Admit(bg, pools, []broker.Offer{{Job: j, LeftMS: 2500, Bounds: slackgate.Bounds(&known, j.Gate(0, j.ReserveMS), policy, 2500)}})
		h.must(err)
		return got.Jobs[0]
	}
	if a := offer("first"); a.Path != slackgate.Paid {
		t.Fatalf("one place is left, but: %+v", a)
	}
	if a := offer("second"); a.Path != slackgate.Reject {
		t.Fatalf("no place is left, but: %+v", a)
	}
	// The running job ends and its worker takes the first: by the old ladder
	// both places are still taken.
	_, err = h.Finish(bg, running, usable("x"))
	h.must(err)
	if a := offer("third"); a.Path != slackgate.Reject || a.Pools[slackgate.Paid].Running != 1 {
		t.Fatalf("the end of a job freed a place that was planned on: %+v", a)
	}
	h.claim(slackgate.Paid)
	if a := offer("fourth"); a.Path != slackgate.Reject || a.Pools[slackgate.Paid].Running != 2 {
		t.Fatalf("the claim freed a place: %+v", a)
	}
	// A waiting job that ends has freed no worker.
	before := h.state().Released[slackgate.Paid]
	h.put(slackgate.Paid, testJob("waiting", 60_000))
	_, err = h.Cancel(bg, "waiting")
	h.must(err)
	h.put(slackgate.Paid, testJob("lost", 60_000))
	h.must(h.rdb.Del(bg, h.key("job", "lost")).Err())
	h.must(h.Leave(bg, broker.Worker{ID: "w-paid", Path: slackgate.Paid, Slots: 1}))
	h.live(10, 0)
	if c, _, err := h.Claim(bg, slackgate.Paid, 10, time.Minute); c != nil || err != nil {
		t.Fatalf("claimed %+v, %v", c, err)
	}
	if after := h.state().Released[slackgate.Paid]; after != before {
		t.Errorf("released went from %d to %d without a claim's end", before, after)
	}
	h.balanced()
}

func emptyLadder(t *testing.T, h *harness) {
	h.live(10, 10)
	b := anywhere(slackgate.Paid)
	b[0].Laddered = true
	got, err := h.Admit(bg, openPools(), []broker.Offer{{Job: testJob("j", 60_000), LeftMS: 60_000, ReserveMS: 2000, Bounds: b}})
	h.must(err)
	if a := got.Jobs[0]; a.Path != slackgate.Reject || a.Pools[slackgate.Paid].Break.Rung != 1 {
		t.Errorf("%+v", a)
	}
}

func heldOffer(t *testing.T, h *harness) {
	h.live(10, 10)
	h.put(slackgate.Free, testJob("j", 60_000))
	was := h.view("j")
	again := func(c *broker.Claim) slackgate.Path {
		t.Helper()
		o := offerTo(slackgate.Paid, &broker.Submission{Spec: c.Spec, DeadlineInMS: 60_000, ReserveMS: c.ReserveMS})
		o.Again = &broker.Again{From: c.Path, Fence: c.Fence}
		got, err := h.Admit(bg, openPools(), []broker.Offer{o})
		h.must(err)
		return got.Jobs[0].Path
	}
	c := h.claim(slackgate.Free)
	if p := again(c); p != slackgate.Paid {
		t.Fatalf("paid did not take the job: %s", p)
	}
	v := h.view("j")
	if v.State != broker.StateWaiting || v.Path != slackgate.Paid || v.DeadlineAtMS != was.DeadlineAtMS || v.AcceptedAtMS != was.AcceptedAtMS {
		t.Errorf("%+v, was %+v", v, was)
	}
	if p := again(c); p != slackgate.Reject {
		t.Error("a void claim offered its job again")
	}
	if _, err := h.Finish(bg, c, usable("x")); !errors.Is(err, broker.ErrFenced) {
		t.Errorf("a void claim finished its job: %v", err)
	}
	st := h.state()
	if st.Pools[slackgate.Free].InFlight() != 0 || st.Pools[slackgate.Paid].Waiting != 1 {
		t.Errorf("%+v", st.Pools)
	}
	c = h.claim(slackgate.Paid)
	if c.ID != "j" || c.Text != "text of j" {
		t.Errorf("claim %+v", c)
	}
	if _, err := h.Cancel(bg, "j"); err != nil || again(c) != slackgate.Reject {
		t.Errorf("a cancelled job was offered again (%v)", err)
	}
}

func ticketsForFreeSlots(t *testing.T, h *harness) {
	h.live(3, 1)
	h.put(slackgate.Paid, testJob("runs", 60_000))
	h.claim(slackgate.Paid) // two slots are free now
	var batch []broker.Offer
	for i := range 4 {
		batch = append(batch, offerTo(slackgate.Paid, testJob(fmt.Sprintf("w%d", i), 60_000)))
	}
	batch = append(batch, offerTo(slackgate.Free, testJob("f", 60_000)))
	got, err := h.Admit(bg, openPools(), batch)
	h.must(err)
	for i, want := range []bool{true, true, false, false, true} {
		if a := got.Jobs[i]; a.Path == slackgate.Reject || a.Ticket != want {
			t.Errorf("job %d: %+v, want ticket %t", i, a, want)
		}
	}
	if got, err = h.Admit(bg, openPools(), batch[:1]); err != nil || got.Jobs[0].Ticket {
		t.Errorf("behind those that wait: %+v, %v", got.Jobs, err)
	}
	h.claim(slackgate.Paid)
	h.claim(slackgate.Paid) // every slot is taken
	if got, err = h.Admit(bg, openPools(), []broker.Offer{offerTo(slackgate.Paid, testJob("x", 60_000))}); err != nil || got.Jobs[0].Ticket {
		t.Errorf("with no slot free: %+v, %v", got.Jobs, err)
	}
	if got, err = h.Admit(bg, openPools(), []broker.Offer{{Job: testJob("no", 60_000), LeftMS: 60_000}}); err != nil || got.Jobs[0].Ticket {
		t.Errorf("a refusal: %+v, %v", got.Jobs, err)
	}
}
