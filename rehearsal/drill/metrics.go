package drill

import (
	"math"
	"slices"
	"strings"

	"leeway/broker"
	"leeway/slackgate"
)

// plainMetrics are the names that a threshold may use as they stand.
var plainMetrics = []string{
	"usable_percent", "late", "late_percent", "expired", "expired_percent", "missed_percent", "empty", "empty_unbooked", "truncated", "revoked", "failed",
	"success", "usable_too_late", "wasted_s", "paid_cost_micro", "free_cost_micro", "unknown_attempts",
	"told_p99_ms", "told_max_ms", "answer_p50_ms", "send_lag_p99_ms", "most_over_ms", "unfinished",
	"queue_age_free_max_ms", "undecided_after_mend_s", "ledger_problems",
}

// knownSomewhere are as plain, but not every run has them.
var knownSomewhere = []string{"twice_answered", "direct_ok", "direct_in_time"}

// phasedMetrics may also be followed by .before, .during or .after, and by
// .rise: during less before.
var phasedMetrics = []string{
	"offered", "admitted", "admitted_paid", "admitted_free", "rejected", "rejected_percent", "undecided", "usable", "missed", "missed_per_s",
}

// phaseNames are those of the parts of a run: before something is broken, while
// it is, and after it was mended.
var phaseNames = []string{"before", "during", "after"}

// known reports whether a metric's name is one of the closed set. labs are the
// backends of the plan: answered.LAB.PHASE.
func known(name string, labs []string) bool {
	if slices.Contains(slices.Concat(plainMetrics, knownSomewhere, phasedMetrics), name) {
		return true
	}
	base, phase, _ := strings.Cut(name, ".")
	if base == "answered" {
		backend, phase, _ := strings.Cut(phase, ".")
		return slices.Contains(labs, backend) && slices.Contains(phaseNames, phase)
	}
	return slices.Contains(phasedMetrics, base) && (phase == "rise" || slices.Contains(phaseNames, phase))
}

// phase is a part of a run. A job belongs to the phase in which it was to be
// sent, a miss to that in which it ended.
type phase struct {
	suffix           string // of its metrics
	fromAtMS, toAtMS int64  // toAtMS is no longer in it
	lengthMS         int64
}

// phases are those of the run; none where nothing was broken.
func (r *Run) phases(warmupMS int64) []phase {
	from, to, broken := r.broken()
	if !broken {
		return nil
	}
	end := r.LengthMS()
	return []phase{
		{suffix: ".before", fromAtMS: warmupMS, toAtMS: from, lengthMS: from - warmupMS},
		{suffix: ".during", fromAtMS: max(from, warmupMS), toAtMS: to, lengthMS: min(to, end) - from},
		{suffix: ".after", fromAtMS: max(to, warmupMS), toAtMS: math.MaxInt64, lengthMS: end - to},
	}
}

// Judge works out a run's metrics and distributions and holds the plan's
// thresholds against them.
func (r *Run) Judge(p *Plan) {
	r.Metrics = map[string]float64{}
	for _, name := range slices.Concat(plainMetrics, phasedMetrics) {
		r.Metrics[name] = 0
	}
	phases := r.phases(p.WarmupMS)
	for _, ph := range phases {
		for _, name := range phasedMetrics {
			r.Metrics[name+ph.suffix] = 0
		}
		for _, path := range slackgate.Paths {
			for _, l := range p.Pool(path).Labs {
				r.Metrics["answered."+l.Name+ph.suffix] = 0
			}
		}
	}
	r.count(phases, p.Class.DeadlineMS)
	r.rates(phases)
	times := r.times()
	r.books()
	r.machine(p, times)
	r.Dists = times.dists()
	r.Verdicts = nil
	for _, t := range p.Thresholds {
		v := Verdict{Threshold: t}
		if x, ok := r.Metrics[t.Metric]; ok {
			v.Value, v.OK = &x, t.Holds(x)
		}
		r.Verdicts = append(r.Verdicts, v)
	}
}

// count counts what became of the jobs.
func (r *Run) count(phases []phase, deadlineMS int64) {
	m := r.Metrics
	suffix := func(atMS int64) string {
		for _, ph := range phases {
			if ph.fromAtMS <= atMS && atMS < ph.toAtMS {
				return ph.suffix
			}
		}
		return ""
	}
	for i := range r.Jobs {
		j := &r.Jobs[i]
		phase := suffix(j.AtMS)
		add := func(name, phase string) {
			m[name]++
			if phase != "" {
				m[name+phase]++
			}
		}
		add("offered", phase)
		switch {
		case j.Undecided():
			add("undecided", phase)
			if len(phases) > 0 {
				m["undecided_after_mend_s"] = max(m["undecided_after_mend_s"], float64(j.AtMS-phases[1].toAtMS)/1000)
			}
			continue
		case !j.Admitted():
			add("rejected", phase)
			continue
		}
		add("admitted", phase)
		add("admitted_"+j.Path.String(), phase)
		if j.Outcome == "" {
			m["unfinished"]++
			continue
		}
		m["most_over_ms"] = max(m["most_over_ms"], float64(j.OverMS))
		if j.Outcome.Success() {
			m["success"]++
		}
		switch j.Outcome {
		case broker.OutcomeUsable:
			add("usable", phase)
			if phase != "" && j.Backend != "" {
				m["answered."+j.Backend+phase]++
			}
			if j.AnswerMS > float64(deadlineMS) {
				m["usable_too_late"]++ // for who sent it, whatever the broker reckons
			}
		case broker.OutcomeLate, broker.OutcomeExpired, broker.OutcomeEmpty, broker.OutcomeTruncated, broker.OutcomeRevoked, broker.OutcomeFailed:
			m[string(j.Outcome)]++
		case broker.OutcomeCancelled:
		}
		if j.Outcome.Miss() {
			add("missed", suffix(j.EndedAtMS()))
		}
	}
}

// rates works out what follows from the counts.
func (r *Run) rates(phases []phase) {
	m := r.Metrics
	for _, of := range []string{"usable", "late", "expired", "missed"} {
		m[of+"_percent"] = 100 * m[of] / max(m["admitted"], 1)
	}
	m["rejected_percent"] = 100 * m["rejected"] / max(m["offered"], 1)
	for _, ph := range phases {
		m["rejected_percent"+ph.suffix] = 100 * m["rejected"+ph.suffix] / max(m["offered"+ph.suffix], 1)
		if ph.lengthMS > 0 {
			m["missed_per_s"+ph.suffix] = m["missed"+ph.suffix] * 1000 / float64(ph.lengthMS)
		}
	}
	if len(phases) > 0 {
		for _, name := range phasedMetrics {
			m[name+".rise"] = m[name+".during"] - m[name+".before"]
		}
	}
}

// times works out the distributions.
func (r *Run) times() times {
	t, m := times{}, r.Metrics
	for i := range r.Jobs {
		j := &r.Jobs[i]
		t.add(sentLate, j.LagMS)
		t.add(timeToVerdict, j.ToldMS)
		if j.Path != slackgate.Paid {
			m["queue_age_free_max_ms"] = max(m["queue_age_free_max_ms"], float64(j.QueueAgeMS))
		}
		if !j.Admitted() {
			t.add("time to reject", j.ToldMS)
			continue
		}
		t.add("slack at admission", float64(j.SlackMS))
		t.add("queue age at admission, "+j.Path.String(), float64(j.QueueAgeMS))
		if j.Outcome == "" {
			continue
		}
		t.add("wait, "+j.Path.String(), float64(j.WaitMS))
		if j.FirstByteMS >= 0 {
			t.add("first byte, "+j.Path.String(), float64(j.FirstByteMS))
		}
		if j.Outcome == broker.OutcomeUsable {
			t.add(usableAnswer, j.AnswerMS)
		}
	}
	m["told_p99_ms"], m["told_max_ms"] = t.quantile(timeToVerdict, 99), t.quantile(timeToVerdict, 100)
	m["answer_p50_ms"] = t.quantile(usableAnswer, 50)
	m["send_lag_p99_ms"] = t.quantile(sentLate, 99)
	return t
}

// books adds what the ledgers, the backends and the checks say.
func (r *Run) books() {
	m := r.Metrics
	for _, s := range r.Spend {
		for _, n := range s.CostMicro {
			m[s.Path.String()+"_cost_micro"] += float64(n)
		}
		m["unknown_attempts"] += float64(s.Unknown)
	}
	booked := 0.0
	for _, s := range r.Misses {
		if s.Cause == broker.CauseEmpty {
			booked += float64(s.Count)
		}
	}
	m["empty_unbooked"] = math.Abs(m["empty"] - booked)
	m["wasted_s"] = r.wasted()
	if r.Calls != nil { // else nobody knows
		whole := map[int]int{}
		for i := range r.Calls {
			if c := &r.Calls[i]; c.Job >= 0 && (c.Ended == "ok" || c.Ended == "abandoned") {
				whole[c.Job]++
			}
		}
		m["twice_answered"] = 0
		for _, n := range whole {
			if n > 1 {
				m["twice_answered"]++
			}
		}
	}
	for _, c := range r.Checks {
		if !c.OK && !c.Before {
			m["ledger_problems"]++
		}
	}
	if r.Direct != nil {
		m["direct_ok"], m["direct_in_time"] = float64(r.Direct.OK), float64(r.Direct.InTime)
	}
}

// wasted is the time that backends spent on calls which nobody could use, in
// seconds: as they record it, else as the jobs show it.
func (r *Run) wasted() float64 {
	ms := int64(0)
	for i := range r.Calls {
		c := &r.Calls[i]
		if c.Job < 0 || r.Jobs[c.Job].Outcome != broker.OutcomeUsable || c.Ended != "ok" {
			ms += c.ElapsedMS
		}
	}
	if r.Calls == nil {
		for i := range r.Jobs {
			if j := &r.Jobs[i]; j.Attempts > 0 && j.Outcome != broker.OutcomeUsable {
				ms += j.ElapsedMS - j.WaitMS
			}
		}
	}
	return float64(ms) / 1000
}
