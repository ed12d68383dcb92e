package knee

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"leeway/broker/background"
	"leeway/workers/backend"
)

// Bounds on what a measurement may do.
const (
	// MaxConcurrent is the greatest load.
	MaxConcurrent = 1024
	// MaxRepeats is the most repeats of a load.
	MaxRepeats = 20
	// MaxCalls is the most calls of a whole measurement.
	MaxCalls = 100_000
)

// Caller calls one backend; [*backend.Client] is one.
type Caller interface {
	Generate(context.Context, backend.Request, backend.Observer) (backend.Answer, error)
}

// Plan says what to measure.
type Plan struct {
	// To is the greatest load; the loads are 1, 2, 4 and so on up to it.
	// Defaults to 64.
	To int
	// Repeats is how often each load is measured. Defaults to 3.
	Repeats int
	// Calls is how many calls a repeat makes for each call in flight, after the
	// warm-up, at least 16 in all. Defaults to 8.
	Calls int
	// Request is what each call asks for.
	Request backend.Request
	// CallTimeout bounds a call. Defaults to one minute.
	CallTimeout time.Duration
	// Measured is told of each load when it has been measured. Defaults to
	// nothing.
	Measured func(Step)
}

// least is the fewest calls of a repeat.
const least = 16

func (p Plan) withDefaults() Plan {
	orDefault(&p.To, 64)
	orDefault(&p.Repeats, 3)
	orDefault(&p.Calls, 8)
	orDefault(&p.CallTimeout, time.Minute)
	if p.Measured == nil {
		p.Measured = func(Step) {}
	}
	return p
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Loads are the loads of the plan.
func (p Plan) Loads() []int {
	p = p.withDefaults()
	var out []int
	for n := 1; n <= p.To; n *= 2 {
		out = append(out, n)
	}
	return out
}

// MostCalls is how many calls the plan makes when no load is beyond the knee.
func (p Plan) MostCalls() int {
	p = p.withDefaults()
	total := 1
	for _, n := range p.Loads() {
		total += p.Repeats * (p.open(n) + warmUp*n + n)
	}
	return total
}

// open is how many calls the open loop makes at a load.
func (p *Plan) open(n int) int { return max(least, p.Calls*n) }

// Validate reports the field that is out of range.
func (p Plan) Validate() error {
	p = p.withDefaults()
	switch {
	case p.To < 2 || p.To > MaxConcurrent:
		return fmt.Errorf("knee: the greatest load of %d is outside 2..%d", p.To, MaxConcurrent)
	case p.Repeats < 1 || p.Repeats > MaxRepeats:
		return fmt.Errorf("knee: %d repeats are outside 1..%d", p.Repeats, MaxRepeats)
	case p.Calls < 2 || p.Calls > 1000:
		return fmt.Errorf("knee: %d calls for each in flight are outside 2..1000", p.Calls)
	case p.CallTimeout < 0:
		return fmt.Errorf("knee: a call's timeout of %v is negative", p.CallTimeout)
	case p.MostCalls() > MaxCalls:
		return fmt.Errorf("knee: the plan makes up to %d calls, more than %d", p.MostCalls(), MaxCalls)
	}
	return nil
}

// beyond is how many loads that do not stand are measured before the rest is
// left out: one could be chance.
const beyond = 2

// Measure measures loads until two in a row are beyond the knee, and applies
// [Find]. The error is not nil if nothing can be said; the steps measured until
// then are returned anyway.
func Measure(ctx context.Context, c Caller, p Plan) ([]Step, Result, error) {
	p = p.withDefaults()
	if err := p.Validate(); err != nil {
		return nil, Result{}, err
	}
	alone := &run{caller: c, plan: &p}
	if !alone.call(ctx, time.Now()) {
		return nil, Result{}, fmt.Errorf("knee: the first call brought no whole answer: %w", alone.err)
	}
	hold := alone.holds[0]
	var steps []Step
	for _, n := range p.Loads() {
		s := Step{Concurrent: n}
		var tokens, p95s []float64
		failed, calls := 0, 0
		for range p.Repeats {
			r := &run{caller: c, plan: &p}
			if err := r.measure(ctx, n, hold); err != nil {
				return steps, Result{}, err
			}
			tokens = append(tokens, r.tokensPerS)
			p95s = append(p95s, r.p95())
			failed, calls = failed+r.failed, calls+r.failed+len(r.firsts)
			hold = r.hold
		}
		s.TokensPerS, s.FirstByteP95MS = spread(tokens), spread(p95s)
		s.FailedShare = float64(failed) / float64(calls)
		steps = append(steps, s)
		p.Measured(s)
		if r, err := Find(steps); err == nil && r.Reached && len(steps) >= 1+beyond && r.Limit <= steps[len(steps)-1-beyond].Concurrent {
			break
		}
	}
	r, err := Find(steps)
	return steps, r, err
}

// spread is the median and the ends of a few values.
func spread(v []float64) Spread {
	slices.Sort(v)
	mid := v[len(v)/2]
	if len(v)%2 == 0 {
		mid = (v[len(v)/2-1] + mid) / 2
	}
	return Spread{mid, v[0], v[len(v)-1]}
}

// run is one repeat of one load.
type run struct {
	caller Caller
	plan   *Plan

	inFlight atomic.Int64

	mu sync.Mutex // guards what follows
	// counting is set once the open loop runs: calls sent before are warm-up.
	counting bool
	firsts   []time.Duration // first bytes, from when the call should have been sent
	holds    []time.Duration // of all whole answers
	ends     []ending        // the same
	failed   int             // calls without a whole answer; none during the warm-up
	err      error           // why the last one failed

	hold       time.Duration // mean, at this load
	tokensPerS float64
}

// ending is a whole answer's last byte.
type ending struct {
	at     time.Time
	tokens int64
}

// warmUp is how many calls each caller makes before anything counts.
const warmUp = 2

// overload is how many times the load may be in flight before the rest of a
// repeat's calls are given up: what is measured then is the queue.
const overload = 4

// measure warms up with n callers, each of whom calls again when it has its
// answer, which shows how long a call lasts at this load, and finds as many
// calls in flight. Then, in place of the callers, calls are sent on a schedule
// that keeps as many in flight if they last as long, whatever the answers do:
// an open loop. hold is how long a call lasted at the load before.
func (r *run) measure(ctx context.Context, n int, hold time.Duration) error {
	var calls sync.WaitGroup
	defer calls.Wait()
	var warm sync.WaitGroup
	stop := make(chan struct{})
	for i := range n {
		warm.Add(1)
		calls.Go(func() {
			_ = background.Sleep(ctx, hold*time.Duration(i)/time.Duration(n)) // not all in step
			for made := 0; ; made++ {
				if made == warmUp {
					warm.Done()
				}
				select {
				case <-stop:
					return
				default:
				}
				if ctx.Err() == nil && !r.call(ctx, time.Now()) {
					_ = background.Sleep(ctx, hold) // one who is turned away does not hammer
				}
			}
		})
	}
	warm.Wait()
	close(stop)
	r.mu.Lock()
	ok := len(r.holds)
	if ok > 0 {
		r.hold = mean(r.holds[ok/2:])
	}
	r.counting, r.failed = true, 0
	r.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if ok == 0 { // it answers nobody at this load
		r.hold, r.failed = hold, n
		return nil
	}

	total := r.plan.open(n)
	every := r.hold / time.Duration(n)
	begin := time.Now()
	for i := range total {
		due := begin.Add(time.Duration(i) * every)
		_ = background.Sleep(ctx, time.Until(due))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if r.inFlight.Load() > int64(overload*n) {
			r.mu.Lock()
			r.failed += total - i
			r.mu.Unlock()
			break
		}
		calls.Go(func() { r.call(ctx, due) })
	}
	end := time.Now()
	r.mu.Lock()
	r.throughput(begin, end)
	r.mu.Unlock()
	calls.Wait()
	return ctx.Err()
}

// throughput counts what ended between the first call sent and the last.
func (r *run) throughput(begin, end time.Time) {
	tokens := int64(0)
	for _, e := range r.ends {
		if e.at.After(begin) && !e.at.After(end) {
			tokens += e.tokens
		}
	}
	if took := end.Sub(begin).Seconds(); took > 0 {
		r.tokensPerS = float64(tokens) / took
	}
}

// call makes one call that was due at an instant, and reports whether it brought
// a whole answer.
func (r *run) call(parent context.Context, due time.Time) bool {
	r.mu.Lock()
	counts := r.counting
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(parent, r.plan.CallTimeout)
	defer cancel()
	r.inFlight.Add(1)
	sent := time.Now()
	a, err := r.caller.Generate(ctx, r.plan.Request, backend.Observer{})
	now := time.Now()
	r.inFlight.Add(-1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed++
		r.err = err
		return false
	}
	r.holds = append(r.holds, now.Sub(sent))
	r.ends = append(r.ends, ending{now, a.Usage.OutputTokens})
	if counts {
		r.firsts = append(r.firsts, sent.Sub(due)+a.FirstByte)
	}
	return true
}

// p95 is that of the first byte, in ms; 0 without any.
func (r *run) p95() float64 {
	if len(r.firsts) == 0 {
		return 0
	}
	slices.Sort(r.firsts)
	at := int(math.Ceil(0.95*float64(len(r.firsts)))) - 1
	return float64(r.firsts[at]) / float64(time.Millisecond)
}

func mean(v []time.Duration) time.Duration {
	var sum time.Duration
	for _, d := range v {
		sum += d
	}
	return sum / time.Duration(len(v))
}
