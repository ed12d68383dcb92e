package drill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
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
		case DoKillWorker, DoAddWorker, DoPauseStore, DoWakeStore:
			return "the simulator has no " + map[bool]string{true: "store", false: "worker processes"}[e.Do == DoPauseStore || e.Do == DoWakeStore]
		case DoFlag:
			if e.On != "ADMIT_FREE" && e.On != "ADMIT_PAID" {
				return "the simulator does not know the flag " + e.On
			}
		case DoFault:
			if _, ok := playable(e.Fault); !ok {
				return "the simulator does not know the fault " + e.Fault
			}
		case DoHeal, DoClearFlag:
		}
	}
	return ""
}

// plays is what a fault does to a call, as the simulator plays it.
type plays uint8

const (
	playsSlow   plays = iota // the first byte comes later
	playsSilent              // nothing ever comes
	playsEmpty               // an answer without text
	playsDown                // an error at once
)

func playable(fault string) (plays, bool) {
	name, _, _ := strings.Cut(fault, ".")
	p, ok := map[string]plays{
		"slow": playsSlow, "silent": playsSilent, "headers-only": playsSilent, "empty": playsEmpty,
		"down": playsDown, "reset": playsDown, "throttled": playsDown,
	}[name]
	return p, ok
}

// Simulate plays a plan in virtual time: not the processes, but the same gate,
// and backends made of the plan's numbers. The seed, from 1, fixes what is
// drawn.
func Simulate(_ context.Context, p *Plan, seed uint64) (*Run, error) {
	if why := CannotSimulate(p); why != "" {
		return nil, refuse(p, []string{why})
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
	_, seen := simulate.Replay(sim.workload(), sim.service(), policy, seed)
	return sim.run(seen), nil
}

// simulation is a plan in the simulator's terms.
type simulation struct {
	plan  *Plan
	jobs  []simulate.Arrival
	pools [slackgate.NumPaths][]simLab
	met   map[int]int // how many calls have met the plan's event
}

// simLab is one backend. Profiles are drawn per job, so that a job has the
// same time in it whenever it comes.
type simLab struct {
	Lab

	first  []int64 // by job
	tailMS int64
	events []Event
}

func newSimulation(p *Plan, schedule []Arrival, seed uint64) (*simulation, error) {
	s := &simulation{plan: p, jobs: arrivals(p, schedule), met: map[int]int{}}
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
			for _, e := range p.Events {
				if e.On == l.Name {
					sl.events = append(sl.events, e)
				}
			}
			s.pools[path] = append(s.pools[path], sl)
		}
	}
	return s, nil
}

// arrivals are a schedule as the simulator takes it.
func arrivals(p *Plan, schedule []Arrival) []simulate.Arrival {
	prefer, _ := p.Class.Prefer.Paths() // checked with the plan
	out := make([]simulate.Arrival, len(schedule))
	for i, a := range schedule {
		out[i] = simulate.Arrival{AtMS: a.AtMS, DeadlineMS: p.Class.DeadlineMS, ReserveMS: p.Class.ReserveMS, Prefer: prefer}
	}
	return out
}

func (s *simulation) workload() simulate.Workload {
	return simulate.Workload{Name: s.plan.Name, Slices: 1, Make: func(uint64) []simulate.Arrival { return s.jobs }}
}

// random reports whether service times are not known before the call.
func (s *simulation) random() bool {
	for _, path := range slackgate.Paths {
		for i := range s.pools[path] {
			if strings.HasPrefix(s.pools[path][i].FirstByte, "lognormal") {
				return true
			}
		}
	}
	return false
}

func (s *simulation) service() simulate.Service {
	out := simulate.Service{Name: s.plan.Name, Random: s.random(), Serve: s.serve, Closed: s.closed}
	for _, path := range slackgate.Paths {
		pool := s.plan.Pool(path)
		out.Workers[path] = pool.Slots
		out.Belief[path] = slackgate.FixedBelief(max(pool.P95MS, 1), max(pool.HoldP95MS, pool.P95MS, 1))
	}
	return out
}

// closed tells whether the plan's flags have closed a pool by then.
func (s *simulation) closed(path slackgate.Path, atMS int64) bool {
	name := "ADMIT_" + strings.ToUpper(path.String())
	shut := false
	for i := range s.plan.Events {
		e := &s.plan.Events[i]
		if e.AtMS > atMS || e.On != name {
			continue
		}
		shut = e.Do == DoFlag && (e.Value == "0" || e.Value == "false")
	}
	return shut
}

// state is the fault that is set at a time; nil: none.
func (l *simLab) state(atMS int64) *Event {
	var now *Event
	for i := range l.events {
		e := &l.events[i]
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

// serve is a call with the failover of the product: the same plan of attempts,
// with each backend's declared p95.
func (s *simulation) serve(c *simulate.Call) simulate.Served {
	pool := s.plan.Pool(c.Path)
	labs := s.pools[c.Path]
	out := simulate.Served{FirstMS: simulate.Never, Fate: simulate.Broken}
	slack := c.SlackMS
	if c.Patient {
		slack = simulate.Never / 2
	}
	spent := int64(0)
	in := attempt.PlanInput{Share: attempt.DefaultShare, Cap: time.Duration(pool.CapMS) * time.Millisecond}
	for len(labs) > 0 {
		in.P95 = in.P95[:0]
		for i := range labs {
			in.P95 = append(in.P95, time.Duration(labs[i].P95MS)*time.Millisecond)
		}
		in.Slack = time.Duration(min(slack-spent, maxSlackMS)) * time.Millisecond
		next := attempt.Next(in)
		if next.Index < 0 {
			if !c.Patient && out.Attempts == 0 && s.plan.RecheckOff {
				next = attempt.Plan{Index: 0, FirstByte: in.Slack, Last: true} // without the check it is called all the same
			} else {
				break
			}
		}
		l := &labs[next.Index]
		labs = labs[next.Index+1:]
		out.Backend, out.Attempts = l.Name, out.Attempts+1
		first, fate := l.first[c.Job], simulate.Answered
		if e := l.state(c.AtMS + spent); e != nil && s.meets(e) {
			what, _ := playable(e.Fault)
			switch what {
			case playsSlow:
				first = faultMS(e, first)
			case playsSilent:
				first = simulate.Never
			case playsEmpty:
				first, fate = faultMS(e, first), simulate.Empty
			case playsDown:
				first, fate = 1, simulate.Broken
			}
		}
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

// faultMS is when the first byte comes under a fault.
func faultMS(e *Event, healthy int64) int64 {
	switch {
	case e.MS > 0:
		return e.MS
	case e.Fault == "slow.20s":
		return 20_000
	case strings.HasPrefix(e.Fault, "slow"):
		return 6000
	}
	return healthy
}

// meets reports whether a call is among those that a fault is for, and counts
// it.
func (s *simulation) meets(e *Event) bool {
	if e.Count == 0 {
		return true
	}
	at := slices.IndexFunc(s.plan.Events, func(x Event) bool { return x == *e })
	s.met[at]++
	return s.met[at] <= e.Count
}

// run is what the simulator saw, as a live run would tell it.
func (s *simulation) run(seen []simulate.JobRun) *Run {
	r := &Run{Jobs: make([]Job, len(seen))}
	for _, path := range slackgate.Paths {
		r.Slots[path] = s.plan.Pool(path).Slots
	}
	for _, e := range s.plan.Events {
		r.Done = append(r.Done, Done{AtMS: e.AtMS, What: e.String(), Breaks: e.Do.breaks(), Mends: e.Do.mends()})
	}
	misses := map[MissSum]int64{}
	for i := range seen {
		j := &r.Jobs[i]
		*j = simulated(&s.jobs[i], &seen[i])
		if j.Outcome.Miss() && j.Outcome != "" {
			misses[MissSum{Path: j.Path, Cause: j.Cause}]++
		}
		if j.Attempts > 0 {
			r.Calls = append(r.Calls, Call{
				Backend: j.Backend, Job: i, AtMS: j.ClaimedMS(), FirstMS: j.FirstByteMS, ElapsedMS: j.ElapsedMS - j.WaitMS,
				Ended: map[bool]string{true: "ok", false: "client_gone"}[j.Outcome == broker.OutcomeUsable],
			})
		}
	}
	for _, path := range slackgate.Paths {
		sum := SpendSum{Path: path, CostMicro: map[string]int64{}}
		for i := range r.Jobs {
			if r.Jobs[i].Path == path {
				sum.Attempts += int64(r.Jobs[i].Attempts)
			}
		}
		r.Spend = append(r.Spend, sum)
		for _, cause := range broker.Causes {
			if n := misses[MissSum{Path: path, Cause: cause}]; n > 0 {
				r.Misses = append(r.Misses, MissSum{path, cause, n})
			}
		}
	}
	return r
}

// simulated is one job of the simulator's as a producer would have seen it.
func simulated(a *simulate.Arrival, s *simulate.JobRun) Job {
	j := Job{
		AtMS: a.AtMS, Path: s.Result.Path, Reason: s.Result.Reason, SlackMS: s.Result.SlackMS,
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
	j.ElapsedMS = s.EndedAtMS - a.AtMS
	j.AnswerMS, j.OverMS, j.WaitMS = float64(j.ElapsedMS), j.ElapsedMS-a.DeadlineMS, j.ElapsedMS
	if s.ClaimedAtMS >= 0 {
		j.WaitMS = s.ClaimedAtMS - a.AtMS
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
	case s.Fate == simulate.Broken && j.OverMS < -a.ReserveMS:
		j.Outcome, j.Cause = broker.OutcomeFailed, broker.CauseFailed
	case s.FirstAtMS < 0:
		j.Outcome, j.Cause = broker.OutcomeLate, broker.CauseLateFirstByte
	default:
		j.Outcome, j.Cause = broker.OutcomeLate, broker.CauseLateFinish
	}
	return j
}
