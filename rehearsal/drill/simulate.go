package drill

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"leeway/broker"
	"leeway/rehearsal/lab"
	"leeway/rehearsal/simulate"
	"leeway/slackgate"
	"leeway/workers/attempt"
)

// CannotSimulate says why the simulator cannot play a plan; empty: it can. It
// calls the same gate and the same failover plan as the product, but it has no
// store, no worker processes and no backend whose speed depends on its load.
func CannotSimulate(p *Plan) string {
	for _, path := range slackgate.Paths {
		for _, l := range p.Pool(path).Labs {
			if strings.HasPrefix(l.FirstByte, "load:") {
				return l.Name + " is slower the more it has to do, which the simulator does not know"
			}
		}
	}
	for i := range p.Events {
		e := &p.Events[i]
		switch e.Do {
		case DoKillWorker, DoAddWorker:
			return "the simulator has no worker processes"
		case DoPauseStore, DoWakeStore:
			return "the simulator has no store"
		case DoFlag:
			if e.On != "ADMIT_FREE" && e.On != "ADMIT_PAID" {
				return "the simulator does not know the flag " + e.On
			}
		case DoFault:
			switch effect, ok := effectOf(e.Fault); {
			case !ok:
				return "the simulator does not know the fault " + e.Fault
			case effect.fate == simulate.Broken && p.only(e.On):
				return e.On + " is its pool's only backend, and the simulator has no breaker that would close the pool"
			}
		case DoHeal, DoClearFlag:
		}
	}
	return ""
}

// only reports whether a backend is the only one of its pool.
func (p *Plan) only(lab string) bool {
	for _, path := range slackgate.Paths {
		if labs := p.Pool(path).Labs; len(labs) == 1 && labs[0].Name == lab {
			return true
		}
	}
	return false
}

// effect is what a fault does to a call, as the simulator plays it.
type effect struct {
	// firstMS is when the first byte comes; 0: when it would without the fault.
	firstMS int64
	// timed: the event may say another time.
	timed bool
	fate  simulate.Fate
}

var effects = map[string]effect{
	"slow":         {firstMS: 6000, timed: true},
	"slow.20s":     {firstMS: 20_000, timed: true},
	"empty":        {timed: true, fate: simulate.Empty},
	"silent":       {firstMS: simulate.Never},
	"headers-only": {firstMS: simulate.Never},
	"down":         {firstMS: 1, fate: simulate.Broken},
	"reset":        {firstMS: 1, fate: simulate.Broken},
	"throttled":    {firstMS: 1, fate: simulate.Broken},
}

// effectOf is a fault's effect; a variant that is not listed has that of the
// name before the point.
func effectOf(fault string) (effect, bool) {
	if e, ok := effects[fault]; ok {
		return e, true
	}
	name, _, _ := strings.Cut(fault, ".")
	e, ok := effects[name]
	return e, ok
}

// Simulate plays a plan in virtual time: not the processes, but the same gate,
// and backends made of the plan's numbers. The seed, from 1, fixes what is
// drawn.
func Simulate(_ context.Context, p *Plan, seed uint64) (*Run, error) {
	if why := CannotSimulate(p); why != "" {
		return nil, refuse(p, why)
	}
	schedule, err := p.Schedule()
	if err != nil {
		return nil, err
	}
	sim, err := newSimulation(p, schedule, seed)
	if err != nil {
		return nil, err
	}
	policy := simulate.PredictiveLearns
	policy.Rescue = false // the plans' classes do not
	if p.Policy == slackgate.Seed {
		policy = simulate.SeedRecheck
	}
	policy.Recheck = !p.RecheckOff
	policy.Cut = policy.Recheck // workers do; without the check they wait for what comes
	service := p.service()
	service.Times, service.Closed = simulate.Drawn, sim.closed
	service.ProbeMS = sim.probe
	service.Start = func([]simulate.Arrival, uint64) func(*simulate.Call) simulate.Served { return sim.serve }
	_, seen := simulate.Replay(p.workload(schedule), service, policy, seed)
	return sim.run(schedule, seen), nil
}

// workload is a schedule as the simulator takes it.
func (p *Plan) workload(schedule []Arrival) simulate.Workload {
	prefer, _ := p.Class.Prefer.Paths() // checked with the plan
	return simulate.Workload{Name: p.Name, Slices: 1, Make: func(uint64) []simulate.Arrival {
		out := make([]simulate.Arrival, len(schedule))
		for i, a := range schedule {
			out[i] = simulate.Arrival{AtMS: a.AtMS, DeadlineInMS: p.Class.DeadlineMS, ReserveMS: p.Class.ReserveMS, Prefer: prefer}
		}
		return out
	}}
}

// service is what the plan declares of its pools, as the simulator takes it. How
// long calls take is not in it.
func (p *Plan) service() (s simulate.Service) {
	for _, path := range slackgate.Paths {
		pool := p.Pool(path)
		s.Workers[path] = pool.Slots
		s.Belief[path] = slackgate.FixedBelief(max(pool.P95MS, 1), max(pool.HoldP95MS, pool.P95MS, 1))
	}
	return s
}

// simulation is a plan in the simulator's terms.
type simulation struct {
	plan  *Plan
	pools [slackgate.NumPaths][]simLab
	met   map[*Event]int // how many calls have met a fault
}

// simLab is one backend. Profiles are drawn per job, so that a job has the
// same time in it whenever it comes.
type simLab struct {
	Lab

	first  []int64 // by job
	tailMS int64
	events []*Event
}

func newSimulation(p *Plan, schedule []Arrival, seed uint64) (*simulation, error) {
	s := &simulation{plan: p, met: map[*Event]int{}}
	for _, path := range slackgate.Paths {
		for _, l := range p.Pool(path).Labs {
			sl := simLab{Lab: l, first: make([]int64, len(schedule))}
			profile, err := lab.ParseProfile(l.FirstByte)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", l.Name, err)
			}
			rng := rand.New(rand.NewPCG(seed, 3))
			for i := range sl.first {
				d := profile.Draw(rng)
				if profile.Random() { // the simulator counts in whole milliseconds
					d = max(time.Millisecond, d.Round(time.Millisecond))
				}
				sl.first[i] = d.Milliseconds()
			}
			tail, err := time.ParseDuration(l.Tail)
			if err != nil {
				return nil, fmt.Errorf("%s: the simulator wants a tail in time: %w", l.Name, err)
			}
			sl.tailMS = tail.Milliseconds()
			for i := range p.Events {
				if e := &p.Events[i]; e.On == l.Name {
					sl.events = append(sl.events, e)
				}
			}
			s.pools[path] = append(s.pools[path], sl)
		}
	}
	return s, nil
}

// closed tells whether the plan's flags have closed a pool by then.
func (s *simulation) closed(path slackgate.Path, atMS int64) bool {
	name := "ADMIT_" + strings.ToUpper(path.String())
	shut := false
	for i := range s.plan.Events {
		if e := &s.plan.Events[i]; e.AtMS <= atMS && e.On == name {
			shut = e.Do == DoFlag && (e.Value == "0" || e.Value == "false")
		}
	}
	return shut
}

// fault is the fault that is set at a time; nil: none.
func (l *simLab) fault(atMS int64) (now *Event) {
	for _, e := range l.events {
		if e.AtMS > atMS {
			break
		}
		now = nil
		if e.Do == DoFault {
			now = e
		}
	}
	return now
}

// call is when a backend's first byte comes for a job whose call starts at a
// time, and what comes.
func (s *simulation) call(l *simLab, job int, atMS int64) (firstMS int64, fate simulate.Fate) {
	healthy := l.first[job]
	e := l.fault(atMS)
	if e == nil {
		return healthy, simulate.Answered
	}
	if s.met[e]++; e.Count > 0 && s.met[e] > e.Count {
		return healthy, simulate.Answered
	}
	what, _ := effectOf(e.Fault)
	if what.timed && e.MS > 0 {
		return e.MS, what.fate
	}
	return cmp.Or(what.firstMS, healthy), what.fate
}

// probe is a call of the pool's first backend for nobody. It meets a fault that
// lasts, and is none of so many that it is for.
func (s *simulation) probe(path slackgate.Path, atMS int64) int64 {
	l := &s.pools[path][0]
	e := l.fault(atMS)
	if e == nil || e.Count > 0 && s.met[e] >= e.Count {
		return l.first[0]
	}
	what, _ := effectOf(e.Fault)
	return cmp.Or(what.firstMS, l.first[0])
}

// serve is a call with the failover of the product: the same plan of attempts,
// with each backend's declared p95.
func (s *simulation) serve(c *simulate.Call) simulate.Served {
	labs := s.pools[c.Path]
	out := simulate.Served{FirstMS: simulate.Never, Fate: simulate.Broken}
	slack := c.SlackMS
	if c.Patient {
		slack = simulate.Never / 2
	}
	spent := int64(0)
	in := attempt.PlanInput{Share: attempt.DefaultShare, Cap: time.Duration(s.plan.Pool(c.Path).CapMS) * time.Millisecond}
	for len(labs) > 0 {
		in.P95 = in.P95[:0]
		for i := range labs {
			in.P95 = append(in.P95, time.Duration(labs[i].P95MS)*time.Millisecond)
		}
		in.Slack = time.Duration(min(slack-spent, maxSlackMS)) * time.Millisecond
		next := attempt.Next(in)
		if next.Index < 0 {
			if c.Patient || out.Attempts > 0 || !s.plan.RecheckOff {
				break
			}
			next = attempt.Plan{Index: 0, FirstByte: in.Slack, Last: true} // without the check it is called all the same
		}
		l := &labs[next.Index]
		labs = labs[next.Index+1:]
		out.Backend, out.Attempts = l.Name, out.Attempts+1
		first, fate := s.call(l, c.Job, c.AtMS+spent)
		budget := next.FirstByte.Milliseconds()
		switch {
		case first > budget: // cut at its share, or at the end of the slack
			spent += budget
		case fate == simulate.Answered:
			out.FirstMS, out.Fate = spent+first, fate
			out.HoldMS = out.FirstMS + l.tailMS
			return out
		default: // an empty answer or an error: the next backend, if time is left
			spent += first
			out.Fate = fate
		}
	}
	out.HoldMS = max(spent, 1)
	return out
}

// maxSlackMS keeps a slack inside a time.Duration.
const maxSlackMS = 7 * 24 * 3600 * 1000

// run is what the simulator saw, as a live run would tell it.
func (s *simulation) run(schedule []Arrival, seen []simulate.JobRun) *Run {
	r := &Run{Jobs: make([]Job, len(seen))}
	for _, path := range slackgate.Paths {
		r.Slots[path] = s.plan.Pool(path).Slots
	}
	for i := range s.plan.Events {
		r.Done = append(r.Done, s.plan.Events[i].done())
	}
	var books books
	for i := range seen {
		j := &r.Jobs[i]
		*j = s.plan.job(schedule[i].AtMS, &seen[i])
		books.spend[j.Path].Attempts += int64(j.Attempts)
		if j.Outcome != "" && j.Outcome.Miss() {
			books.miss(j.Path, j.Cause)
		}
		if j.Attempts > 0 {
			c := Call{
				Backend: j.Backend, Job: i, AtMS: j.ClaimedAtMS(), FirstMS: j.FirstByteMS, ElapsedMS: j.ElapsedMS - j.WaitMS, Ended: "client_gone",
			}
			if j.Outcome == broker.OutcomeUsable {
				c.Ended = "ok"
			}
			r.Calls = append(r.Calls, c)
		}
	}
	r.Spend, r.Misses = books.sums()
	return r
}

// job is one job of the simulator's as a producer would have seen it.
func (p *Plan) job(atMS int64, s *simulate.JobRun) Job {
	j := Job{
		AtMS: atMS, Path: s.Result.Path, Reason: s.Result.Reason, SlackMS: s.Result.SlackMS,
		PredictedWaitMS: s.Result.PredictedWaitMS, FirstByteMS: -1,
	}
	asked := s.Result.Path
	if asked == slackgate.Reject {
		asked = slackgate.Free
	}
	j.NeedMS, j.QueueAgeMS = min(s.Result.NeedMS[asked], maxSlackMS), s.Result.QueueAgeMS[asked]
	if !j.Admitted() {
		return j
	}
	j.Path, j.Backend, j.Attempts = s.Path, s.Backend, s.Attempts
	j.ElapsedMS = s.EndedAtMS - atMS
	j.AnswerMS, j.OverMS, j.WaitMS = float64(j.ElapsedMS), j.ElapsedMS-p.Class.DeadlineMS, j.ElapsedMS
	if s.ClaimedAtMS >= 0 {
		j.WaitMS = s.ClaimedAtMS - atMS
	}
	if s.FirstAtMS >= 0 {
		j.FirstByteMS = s.FirstAtMS - s.ClaimedAtMS
	}
	switch {
	case s.Usable:
		j.Outcome = broker.OutcomeUsable
	case s.Dropped:
		j.Outcome, j.Cause = broker.OutcomeExpired, broker.CauseExpiredInQueue
	case s.Fate == simulate.Empty:
		j.Outcome, j.Cause = broker.OutcomeEmpty, broker.CauseEmpty
	case s.Fate == simulate.Broken && j.OverMS < -p.Class.ReserveMS:
		j.Outcome, j.Cause = broker.OutcomeFailed, broker.CauseFailed
	case s.FirstAtMS < 0:
		j.Outcome, j.Cause = broker.OutcomeLate, broker.CauseLateFirstByte
	default:
		j.Outcome, j.Cause = broker.OutcomeLate, broker.CauseLateFinish
	}
	return j
}
