package drill

import (
	"slices"

	"leeway/broker"
	"leeway/rehearsal/simulate"
	"leeway/slackgate"
)

// Compare works out what other policies, and the best possible schedule, would
// have made of a run's own arrivals and service times. A call that a policy
// makes and the run did not takes as long, and ends as, the run's own call in
// that pool whose start was nearest in time; in a pool that was never called it
// takes what is declared.
func (r *Run) Compare(p *Plan) {
	jobs := make([]Arrival, len(r.Jobs))
	for i := range r.Jobs {
		jobs[i] = Arrival{AtMS: r.Jobs[i].AtMS}
	}
	if len(jobs) == 0 {
		return
	}
	w, s := p.workload(jobs), r.measured(p)
	r.Compared = []Compared{{
		Name: "this run", Usable: new(r.Metrics["usable"]), Late: new(r.Metrics["late"]), Dropped: new(r.Metrics["expired"]),
		Rejected: new(r.Metrics["rejected"] + r.Metrics["undecided"]), WastedS: new(r.Metrics["wasted_s"]), Note: "as it was",
	}}
	seed := simulate.SeedNoRecheck
	seed.Name = "seed gate, no re-check"
	withRecheck := simulate.SeedRecheck
	withRecheck.Name = "seed gate"
	predictive := simulate.PredictiveLearns
	predictive.Name, predictive.Rescue = "predictive", false
	for _, policy := range []simulate.Policy{predictive, withRecheck, seed, simulate.NoAdmission} {
		o := simulate.Run(w, s, policy, 1)
		r.Compared = append(r.Compared, Compared{
			Name: policy.Name, Usable: new(float64(o.Usable)), Late: new(float64(o.Late)), Dropped: new(float64(o.Dropped)),
			Rejected: new(float64(o.Rejected)), WastedS: new(float64(o.WastedMS) / 1000), Note: "simulated on this run",
		})
	}
	best := simulate.BestPossible(w, s, 1)
	r.Compared = append(r.Compared, Compared{Name: "no schedule beats", Usable: new(float64(best.Bound)), Note: "a bound: knows everything from the start"})
	if r.Metrics != nil && best.Bound > 0 {
		r.Metrics["of_bound_percent"] = 100 * r.Metrics["usable"] / float64(best.Bound)
	}
}

// measured is the run's own service: its calls, by the time they started.
func (r *Run) measured(p *Plan) simulate.Service {
	type call struct {
		atMS   int64
		served simulate.Served
	}
	var calls [slackgate.NumPaths][]call
	for i := range r.Jobs {
		j := &r.Jobs[i]
		if j.Attempts == 0 || j.Outcome == "" || j.Outcome == broker.OutcomeCancelled {
			continue
		}
		v := simulate.Served{FirstMS: simulate.Never, HoldMS: max(1, j.ElapsedMS-j.WaitMS), Backend: j.Backend, Attempts: j.Attempts}
		if j.FirstByteMS >= 0 {
			v.FirstMS = j.FirstByteMS
		}
		switch j.Outcome {
		case broker.OutcomeEmpty:
			v.Fate = simulate.Empty
		case broker.OutcomeFailed, broker.OutcomeTruncated:
			v.Fate = simulate.Broken
		case broker.OutcomeLate:
			if v.FirstMS == simulate.Never {
				v.Fate = simulate.Broken // cut: nobody knows when it would have come
			}
		case broker.OutcomeUsable, broker.OutcomeExpired, broker.OutcomeRevoked, broker.OutcomeCancelled:
		}
		calls[j.Path] = append(calls[j.Path], call{j.ClaimedAtMS(), v})
	}
	for _, path := range slackgate.Paths {
		slices.SortFunc(calls[path], func(a, b call) int { return int(a.atMS - b.atMS) })
	}
	out := p.service()
	out.Workers, out.Times = r.Slots, simulate.ByStart
	serve := func(c *simulate.Call) simulate.Served {
		of := calls[c.Path]
		if len(of) == 0 {
			pool := p.Pool(c.Path)
			return simulate.Served{FirstMS: pool.P95MS, HoldMS: max(pool.HoldP95MS, pool.P95MS)}
		}
		k, _ := slices.BinarySearchFunc(of, c.AtMS, func(x call, at int64) int { return int(x.atMS - at) })
		if k == len(of) || k > 0 && c.AtMS-of[k-1].atMS <= of[k].atMS-c.AtMS {
			k--
		}
		return of[k].served
	}
	out.Start = func([]simulate.Arrival, uint64) func(*simulate.Call) simulate.Served { return serve }
	return out
}
