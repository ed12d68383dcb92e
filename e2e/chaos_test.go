//go:build server

package e2e_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	brokerflag "leeway/broker/flag"
	"leeway/broker/wire"
	"leeway/rehearsal/lab"
	"leeway/rehearsal/proctest"
	"leeway/slackgate"
	"leeway/workers"
)

// What `make chaos` and `make soak` set; CI runs the defaults.
var (
	chaosSeed = flag.Uint64("chaos.seed", 1, "seed of the chaos run's faults and jobs")
	chaosFor  = flag.Duration("chaos.for", 6*time.Second, "how long faults are injected")
	chaosJobs = flag.Int("chaos.jobs", 0, "submissions of the chaos run; 0: as many as its time has room for")
	chaosRate = flag.Float64("chaos.rate", 12, "submissions a second of the chaos run")
	chaosN    = flag.Int("chaos.shards", 1, "shards of the chaos run, over one Redis")
)

// chaosBalance is the last chaos run's, for TestMain to print last.
var chaosBalance string

// chaos is a deployment under random faults: two API and two worker processes,
// Redis with its AOF and two lab backends. The first API and the first worker
// are never killed, so that what they leak shows. The free pool is lost with the
// other worker.
type chaos struct {
	*stack
	rng       *rand.Rand
	faults    map[string]int
	restarted time.Time // when a worker was last

	mu    sync.Mutex // guards what follows
	doors []*client.Client
	// ghosts is how many producers were refused after a try without an answer.
	// A refusal binds no key, and an API that stood still may take the first try
	// up afterwards: such a job is nobody's, and on the books like any other.
	ghosts int
}

// chaosFault is one thing that goes wrong until it is healed. Faults of the same
// part exclude each other.
type chaosFault struct {
	name, part string
	holdMS     [2]int
	begin      func(c *chaos) (heal func())
}

// stopWorker happens once a minute at the least.
var stopWorker = chaosFault{"stop-worker", "worker", [2]int{0, 1000}, func(c *chaos) func() {
	p := c.workers[len(c.workers)-1]
	p.Signal(syscall.SIGTERM)
	return func() { // what it still has to book needs Redis
		p.ended()
		c.join()
	}
}}

// chaosFaults are the floor rows and what on-call does, and some of the
// backends' faults.
var chaosFaults = []chaosFault{
	{"kill-worker", "worker", [2]int{300, 3000}, func(c *chaos) func() {
		c.workers[len(c.workers)-1].kill()
		return func() { c.join() }
	}},
	{"pause-worker", "worker", [2]int{500, 6000}, func(c *chaos) func() {
		return c.stopped(c.workers[c.rng.IntN(2)*(len(c.workers)-1)])
	}},
	stopWorker,
	{"kill-api", "api", [2]int{200, 2000}, func(c *chaos) func() {
		c.apis[len(c.apis)-1].kill()
		return func() { c.open() }
	}},
	{"pause-api", "api", [2]int{300, 3000}, func(c *chaos) func() {
		return c.stopped(c.apis[c.rng.IntN(2)*(len(c.apis)-1)])
	}},
	{"redis-stop", "redis", [2]int{200, 3000}, func(c *chaos) func() {
		c.redis.Kill()
		return c.redis.Run
	}},
	{"redis-pause", "redis", [2]int{300, 5000}, func(c *chaos) func() {
		c.redis.Pause()
		return c.redis.Resume
	}},
	{"hung-call", "lab", [2]int{500, 3000}, func(c *chaos) func() {
		b := c.lab()
		b.plays(lab.Fault{Name: "silent", Count: 1})
		return func() { b.fault("", 0) }
	}},
	{"breaker", "lab", [2]int{2000, 5000}, func(c *chaos) func() { // time enough for it to open
		b := c.lab()
		b.fault("down.503", 0)
		return func() { b.fault("", 0) }
	}},
	{"backend", "lab", [2]int{500, 3000}, func(c *chaos) func() {
		b := c.lab()
		kinds := []string{
			"silent", "headers-only", "cut.clean", "cut.abrupt", "bad-chunk", "empty.content", "down.503", "down.refused", "flaky",
			"throttled", "reset", "stall", "error-in-200.object", "usage-missing.none", "usage-absurd.huge", "no-done", "comments",
		}
		kind := kinds[c.rng.IntN(len(kinds))]
		c.faults["backend "+kind]++
		b.fault(kind, 0)
		return func() { b.fault("", 0) }
	}},
	{"drain", "oncall", [2]int{300, 2500}, func(c *chaos) func() {
		o := &wire.Order{Reason: "chaos"}
		if err := c.order(func(ctx context.Context) error { _, err := c.client.Drain(ctx, "free", "", o); return err }); err != nil {
			return func() {} // with Redis or the API away too; nothing was drained, or it is resumed at the end
		}
		return func() {
			_ = c.order(func(ctx context.Context) error { _, err := c.client.Resume(ctx, "free", "", o); return err })
		}
	}},
	{"flag", "oncall", [2]int{300, 2500}, func(c *chaos) func() {
		_ = c.order(func(ctx context.Context) error {
			_, err := c.client.SetFlag(ctx, brokerflag.AdmitFree, &wire.FlagChange{Value: "0", Reason: "chaos", ForMS: 5000})
			return err
		})
		return func() {
			_ = c.order(func(ctx context.Context) error {
				_, err := c.client.ClearFlag(ctx, brokerflag.AdmitFree, "", "", "chaos")
				return err
			})
		}
	}},
}

// order gives an order of on-call, who does not wait long for an API that
// stands still.
func (c *chaos) order(give func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return give(ctx)
}

func (c *chaos) stopped(p *process) func() {
	p.Signal(syscall.SIGSTOP)
	return func() { p.Signal(syscall.SIGCONT) }
}

// lab is one of the two backends.
func (c *chaos) lab() *backend {
	return c.labs[[]string{"lab-paid", "lab-free"}[c.rng.IntN(2)]]
}

// join starts a worker, open an API.
func (c *chaos) join() {
	free := "LEEWAY_FREE_SLOTS=4"
	if len(c.workers) == 0 {
		free = "LEEWAY_FREE_SLOTS=0"
	}
	c.startWorker("LEEWAY_PAID_SLOTS=4", free).outage = true
}

func (c *chaos) open() {
	first := c.client
	c.startAPI().outage = true
	c.mu.Lock()
	defer c.mu.Unlock()
	if first == nil {
		c.doors = []*client.Client{c.client}
		return
	}
	c.doors = []*client.Client{first, c.client}
	c.client = first // reads go to the one that lives
}

func (c *chaos) door(n int) *client.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doors[n%len(c.doors)]
}

// until injects faults, one or two at a time, until the instant. Processes that
// a fault took away are started with Redis there.
func (c *chaos) until(end time.Time) {
	for time.Now().Before(end) {
		n := 1 + c.rng.IntN(2)
		var heals []func()
		taken := map[string]bool{}
		for range n {
			f := &chaosFaults[c.rng.IntN(len(chaosFaults))]
			if time.Since(c.restarted) > time.Minute {
				f = &stopWorker
				c.restarted = time.Now()
			}
			hold := time.Duration(f.holdMS[0]+c.rng.IntN(f.holdMS[1]-f.holdMS[0])) * time.Millisecond
			if taken[f.part] {
				continue
			}
			taken[f.part] = true
			c.faults[f.name]++
			heal := f.begin(c)
			if f.part == "redis" {
				heals = slices.Insert(heals, 0, heal) // first
			} else {
				heals = append(heals, heal)
			}
			<-time.After(hold)
		}
		for _, heal := range heals {
			heal()
		}
		<-time.After(time.Duration(100+c.rng.IntN(900)) * time.Millisecond)
	}
}

// answerWithin is how long a producer goes on asking with the same key.
const answerWithin = time.Minute

// produce submits one job until there is an answer that is its own: an
// admission or a refusal. The same key makes asking again harmless.
func (c *chaos) produce(i int, docs []string) {
	rng := rand.New(rand.NewPCG(*chaosSeed, uint64(i)))
	s := &submission{job: client.Job{
		Class: []string{"summary", "paid-only", "free-only", "rescued"}[rng.IntN(4)], Text: docs[rng.IntN(len(docs))],
		DeadlineMS: 3000 + rng.Int64N(9000), IdempotencyKey: fmt.Sprintf("chaos-%d-%d", *chaosSeed, i),
	}}
	defer c.book.add(s)
	end := time.Now().Add(answerWithin)
	for try := rng.IntN(2); ; try++ {
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
		v, err := c.door(try).Submit(ctx, &s.job)
		cancel()
		var p *wire.Problem
		switch {
		case err == nil:
			s.verdict, s.err = v, nil
			if rng.IntN(20) == 0 {
				ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
				_, _ = c.door(try).Cancel(ctx, v.JobID)
				cancel()
			}
			return
		case errors.As(err, &p) && slackgate.Reason(p.Reason) != slackgate.ReasonGateUnavailable:
			if s.err != nil {
				c.mu.Lock()
				c.ghosts++
				c.mu.Unlock()
			}
			s.refusal, s.err = p, nil
			return
		}
		s.err = err
		if time.Now().After(end) {
			return
		}
		<-time.After(100 * time.Millisecond)
	}
}

// load submits at the rate until stopped, or until there are enough.
func (c *chaos) load(stop <-chan struct{}, docs []string) {
	var wg sync.WaitGroup
	defer wg.Wait()
	begun := time.Now()
	for i := 0; *chaosJobs == 0 || i < *chaosJobs; i++ {
		at := begun.Add(time.Duration(float64(i) / *chaosRate * float64(time.Second)))
		select {
		case <-stop:
			return
		case <-time.After(time.Until(at)):
		}
		wg.Go(func() { c.produce(i, docs) })
	}
}

// TestChaos runs a deployment under load and random faults, and then holds
// every book against every other.
func TestChaos(t *testing.T) { runChaos(t) }

func runChaos(t *testing.T) {
	t.Helper()
	s := quick()
	s.Shards = *chaosN
	s.PaidSlots, s.PaidMS, s.PaidTail, s.PaidP95 = 8, 400, 200, 1000
	s.FreeSlots, s.FreeMS, s.FreeTail, s.FreeP95 = 4, 700, 200, 1500
	s.DeadlineMS, s.ReserveMS, s.RedisMS = 8000, 500, defaultMS
	s.More = "  rescued: {deadline_ms: 8000, reserve_ms: 500, prefer: free-first, rescue: true}\n" +
		fmt.Sprintf("limits: {text_bytes: 65536, in_flight_bytes: %d}\n", hostileBytes)
	// What is acknowledged is on disk.
	c := &chaos{stack: deploy(t, s, "--appendfsync", "always"), faults: map[string]int{}}
	c.rng = rand.New(rand.NewPCG(*chaosSeed, 0))
	t.Logf("seed %d, faults for %v, %g submissions a second", *chaosSeed, *chaosFor, *chaosRate)
	c.join()
	c.join()
	c.open()
	c.open()
	c.ready()
	docs := documents(t)
	begin := c.vitals()
	relieved := c.beside(docs)
	stop, loaded := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(loaded)
		c.load(stop, docs)
	}()
	if *chaosJobs == 0 {
		c.until(time.Now().Add(*chaosFor))
		close(stop)
	} else {
		for done := false; !done; {
			c.until(time.Now().Add(time.Second))
			select {
			case <-loaded:
				done = true
			default:
			}
		}
	}
	<-loaded
	relieved()
	// Whatever on-call had ordered, the pools are open again.
	proctest.Eventually(t, 20*time.Second, "pools open", func() error {
		_, err := c.client.Resume(context.Background(), "free", "", &wire.Order{Reason: "chaos is over"})
		return err
	})
	c.ready()
	c.settled(time.Minute)
	c.probesSettled()
	c.balance(begin)
}

// probesSettled waits for the rows of probes whose worker was killed. They belong
// to no job whose end would settle them: they are settled as unknown seconds
// after they were due. A short run does not wait, and tells them apart.
func (c *chaos) probesSettled() {
	c.t.Helper()
	if *chaosFor < time.Minute && *chaosJobs == 0 {
		return
	}
	proctest.Eventually(c.t, 2*time.Minute, "rows of killed probes settled", func() error {
		if n := c.openRows(); n > 0 {
			return fmt.Errorf("%d rows are open", n)
		}
		return nil
	})
}

// vitals are a process's goroutines, its live heap after the last collection and
// its resident memory, which with the race detector is a multiple.
type vitals struct{ goroutines, heapMiB, rssMiB int64 }

// vitals of the two processes that live through it all.
func (c *chaos) vitals() map[*process]vitals {
	c.t.Helper()
	out := map[*process]vitals{}
	for _, door := range c.doors {
		door.HTTP.CloseIdleConnections()
	}
	pages := c.metrics()
	for _, p := range []*process{c.apis[0], c.workers[0]} {
		pg := pages[p]
		out[p] = vitals{pg.get("go_goroutines"), pg.get("go_memstats_next_gc_bytes") >> 21, pg.get("process_resident_memory_bytes") >> 20}
	}
	return out
}

// How many goroutines and MiB of live heap a process may have more than at its
// start: connections that are kept, and what the closing checks have read.
const (
	moreGoroutines = 40
	moreMiB        = 64
)

// balance holds the books against each other and writes the last line.
func (c *chaos) balance(begin map[*process]vitals) {
	t := c.t
	t.Helper()
	ofProbe := func(r *broker.SpendRow) bool { return r.Class == workers.ProbeClass }
	rows, open, calls, pages := c.stillBut(ofProbe)
	misses, err := c.client.Misses(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	lost := 0
	for _, s := range c.book.all() {
		if s.err != nil {
			t.Errorf("no answer within %v: %v", answerWithin, s.err)
		}
		if s.admitted() && (s.view == nil || s.view.State != broker.StateDone) {
			lost++
		}
	}
	c.auditOutcomes(rows, misses, rules{unanswered: c.ghosts})
	// A call that was taken back, or met nobody, may not have reached its backend.
	c.auditAttempts(slices.Concat(rows, open), calls, rules{uncalled: func(r *broker.SpendRow) bool {
		return slices.Contains([]string{"lost", "connect", "cancelled", ""}, r.Result)
	}})
	leaked := c.leaked()
	for p, pg := range pages {
		auditShared(t, p.name, pg, rows, misses)
	}
	c.balanced()
	byID, _ := c.jobLines()
	for id, lines := range byID {
		if len(lines) > 1 {
			t.Errorf("job %s has %d log lines", id, len(lines))
		}
	}
	end := c.vitals()
	for p, b := range begin {
		e := end[p]
		t.Logf("%s: goroutines %d at the start and %d at the end, live heap %d and %d MiB, resident %d and %d MiB",
			p.name, b.goroutines, e.goroutines, b.heapMiB, e.heapMiB, b.rssMiB, e.rssMiB)
		if e.goroutines > b.goroutines+moreGoroutines || e.heapMiB > b.heapMiB+moreMiB {
			t.Errorf("%s grew: %+v, then %+v", p.name, b, e)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.faults)) {
		t.Logf("fault %-32s %d", name, c.faults[name])
	}
	opened := 0
	for _, p := range c.workers {
		for _, l := range p.lines() {
			if l["msg"] == "backend changed state" && l["state"] == broker.BackendOpen {
				opened++
			}
		}
	}
	t.Logf("breakers opened %d times", opened)
	t.Logf("answers %v", c.book.reasons())
	chaosBalance = fmt.Sprintf("balance: seed %d, jobs %d of %d submissions, outcomes %v, lost %d, calls %d, spend rows %d, generated twice %d, open spend rows %d, leaked slots %d",
		*chaosSeed, len(c.book.admitted()), len(c.book.all()), c.outcomes(), lost, count(calls), len(rows), c.twice(rows), len(open), leaked)
	if t.Failed() {
		chaosBalance += fmt.Sprintf("; FAILED, again with -chaos.seed %d -chaos.for %v -chaos.shards %d", *chaosSeed, *chaosFor, *chaosN)
	}
	t.Log(chaosBalance)
}

// openRows is the number of open spend rows.
func (c *chaos) openRows() int {
	c.t.Helper()
	_, open, err := c.client.Spend(context.Background())
	if err != nil {
		c.t.Fatal(err)
	}
	return len(open)
}

// leaked is how many promises, claims and backend slots are still taken once
// every job has ended.
func (c *chaos) leaked() (n int64) {
	c.t.Helper()
	proctest.Eventually(c.t, 30*time.Second, "slots free", func() error {
		n = 0
		for _, b := range c.labs {
			n += int64(b.inService())
		}
		for _, pg := range c.metrics() {
			for _, path := range slackgate.Paths {
				n += pg.get(fmt.Sprintf("job_inflight{path=%q}", path))
			}
		}
		if n > 0 {
			return fmt.Errorf("%d are taken", n)
		}
		return nil
	})
	return n
}

// twice is how many jobs a backend was called for again because an earlier
// call of theirs was lost with its worker. Each such call has its row.
func (c *chaos) twice(rows []broker.SpendRow) (n int) {
	c.t.Helper()
	called := map[string]int{} // by job
	seen := map[string]bool{}
	for _, b := range c.labs {
		for _, a := range b.attempts() {
			called[a.RequestID[:strings.LastIndexByte(a.RequestID, '-')]]++
			seen[a.RequestID] = true
		}
	}
	jobs := map[string]bool{}
	for i := range rows {
		r := &rows[i]
		if r.Result == "lost" && called[r.JobID] > 1 && seen[fmt.Sprintf("%s-%d", r.JobID, r.Attempt)] {
			jobs[r.JobID] = true
		}
	}
	return len(jobs)
}
