package drill

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"

	"leeway/broker"
	"leeway/slackgate"
)

// phases are the parts of a run: before something is broken, while it is, and
// after it was mended. A job belongs to the phase in which it was to be sent, a
// miss to that in which it ended.
var phases = [...]string{"before", "during", "after"}

// plainMetrics are the names that a threshold may use as they stand.
var plainMetrics = []string{
	"usable_percent", "late", "late_percent", "expired", "expired_percent", "missed_percent", "empty", "empty_unbooked", "truncated", "failed",
	"success", "wasted_s", "paid_cost_micro", "free_cost_micro", "unknown_attempts", "twice_answered",
	"told_p99_ms", "told_max_ms", "answer_p50_ms", "send_lag_p99_ms", "most_over_ms", "unfinished",
	"queue_age_free_max_ms", "undecided_after_mend_s", "ledger_problems",
	"direct_ok", "direct_in_time",
}

// phasedMetrics may also be followed by .before, .during or .after, and by
// .rise: during less before.
var phasedMetrics = []string{
	"offered", "admitted", "admitted_paid", "admitted_free", "rejected", "rejected_percent", "undecided", "usable", "missed", "missed_per_s",
}

// known reports whether a metric's name is one of the closed set. labs are the
// backends of the plan: answered.LAB.PHASE.
func known(name string, labs []string) bool {
	if slices.Contains(plainMetrics, name) || slices.Contains(phasedMetrics, name) {
		return true
	}
	base, phase, _ := strings.Cut(name, ".")
	if base == "answered" {
		backend, phase, _ := strings.Cut(phase, ".")
		return slices.Contains(labs, backend) && slices.Contains(phases[:], phase)
	}
	return slices.Contains(phasedMetrics, base) && (phase == "rise" || slices.Contains(phases[:], phase))
}

// Dist is a distribution in milliseconds.
type Dist struct {
	Name string `json:"name"`
	N    int64  `json:"n"`
	P50  int64  `json:"p50_ms"`
	P90  int64  `json:"p90_ms"`
	P95  int64  `json:"p95_ms"`
	P99  int64  `json:"p99_ms"`
	Max  int64  `json:"max_ms"`
}

// longestMS bounds what a histogram takes: a day, the longest deadline.
const longestMS = 24 * 3600 * 1000

// series collects one distribution.
type series struct{ h *hdrhistogram.Histogram }

func newSeries() *series { return &series{hdrhistogram.New(1, longestMS, 4)} }

func (s *series) add(ms float64) {
	_ = s.h.RecordValue(int64(math.Round(min(max(ms, 0), longestMS)))) // within bounds
}

func (s *series) dist(name string) Dist {
	return Dist{
		Name: name, N: s.h.TotalCount(), P50: s.h.ValueAtQuantile(50), P90: s.h.ValueAtQuantile(90),
		P95: s.h.ValueAtQuantile(95), P99: s.h.ValueAtQuantile(99), Max: s.h.Max(),
	}
}

// Judge works out a run's metrics and distributions and holds the plan's
// thresholds against them.
func (r *Run) Judge(p *Plan) {
	r.Metrics = map[string]float64{}
	if _, _, broken := r.broken(); broken {
		for _, path := range slackgate.Paths {
			for _, l := range p.Pool(path).Labs {
				for _, ph := range phases {
					r.Metrics["answered."+l.Name+"."+ph] = 0
				}
			}
		}
	}
	r.count(p.WarmupMS)
	r.times()
	r.books()
	r.machine(p)
	r.Verdicts = nil
	for _, t := range p.Thresholds {
		v := Verdict{Threshold: t}
		if x, ok := r.Metrics[t.Metric]; ok {
			v.Value, v.OK = &x, t.Holds(x)
		}
		r.Verdicts = append(r.Verdicts, v)
	}
}

func (r *Run) count(warmupMS int64) {
	m := r.Metrics
	from, to, broken := r.broken()
	for _, name := range phasedMetrics {
		m[name] = 0
		for _, ph := range phases {
			if broken {
				m[name+"."+ph] = 0
			}
		}
	}
	for _, name := range []string{
		"late", "expired", "empty", "truncated", "failed", "success", "unfinished", "most_over_ms", "undecided_after_mend_s",
	} {
		m[name] = 0
	}
	phaseOf := func(atMS int64) string {
		switch {
		case !broken, atMS < warmupMS:
			return ""
		case atMS < from:
			return ".before"
		case atMS < to:
			return ".during"
		}
		return ".after"
	}
	for i := range r.Jobs {
		j := &r.Jobs[i]
		phase := phaseOf(j.AtMS)
		add := func(name string) {
			m[name]++
			if phase != "" {
				m[name+phase]++
			}
		}
		add("offered")
		switch {
		case j.Admitted():
			add("admitted")
			add("admitted_" + j.Path.String())
		case j.Undecided():
			add("undecided")
			if broken && j.AtMS >= to {
				m["undecided_after_mend_s"] = max(m["undecided_after_mend_s"], float64(j.AtMS-to)/1000)
			}
		default:
			add("rejected")
		}
		if !j.Admitted() {
			continue
		}
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
			add("usable")
			if phase != "" && j.Backend != "" {
				m["answered."+j.Backend+phase]++
			}
		case broker.OutcomeLate, broker.OutcomeExpired, broker.OutcomeEmpty, broker.OutcomeTruncated, broker.OutcomeFailed:
			m[string(j.Outcome)]++
		case broker.OutcomeCancelled:
		}
		if j.Outcome.Miss() {
			phase = phaseOf(j.EndedAtMS()) // a miss is one when it ends
			add("missed")
		}
	}
	for _, ph := range append([]string{""}, phases[:]...) {
		if ph != "" {
			ph = "." + ph
		}
		if n := m["offered"+ph]; n > 0 {
			m["rejected_percent"+ph] = 100 * m["rejected"+ph] / n
		}
	}
	if broken {
		length := r.LengthMS()
		for ph, ms := range map[string]int64{".before": from - warmupMS, ".during": min(to, length) - from, ".after": length - to} {
			if ms > 0 {
				m["missed_per_s"+ph] = m["missed"+ph] * 1000 / float64(ms)
			}
		}
		for _, name := range phasedMetrics {
			m[name+".rise"] = m[name+".during"] - m[name+".before"]
		}
	}
	for name, of := range map[string]string{"usable_percent": "usable", "late_percent": "late", "expired_percent": "expired", "missed_percent": "missed"} {
		m[name] = 0
		if m["admitted"] > 0 {
			m[name] = 100 * m[of] / m["admitted"]
		}
	}
}

// times works out the distributions.
func (r *Run) times() {
	byPath := func() map[slackgate.Path]*series {
		return map[slackgate.Path]*series{slackgate.Paid: newSeries(), slackgate.Free: newSeries()}
	}
	first, wait, age := byPath(), byPath(), byPath()
	slack, refused, told, answer, lag := newSeries(), newSeries(), newSeries(), newSeries(), newSeries()
	m := r.Metrics
	m["queue_age_free_max_ms"] = 0
	for i := range r.Jobs {
		j := &r.Jobs[i]
		lag.add(j.LagMS)
		told.add(j.ToldMS)
		if !j.Admitted() {
			refused.add(j.ToldMS)
			m["queue_age_free_max_ms"] = max(m["queue_age_free_max_ms"], float64(j.QueueAgeMS))
			continue
		}
		slack.add(float64(j.SlackMS))
		age[j.Path].add(float64(j.QueueAgeMS))
		if j.Path == slackgate.Free {
			m["queue_age_free_max_ms"] = max(m["queue_age_free_max_ms"], float64(j.QueueAgeMS))
		}
		if j.Outcome == "" {
			continue
		}
		wait[j.Path].add(float64(j.WaitMS))
		if j.FirstByteMS >= 0 {
			first[j.Path].add(float64(j.FirstByteMS))
		}
		if j.Outcome == broker.OutcomeUsable {
			answer.add(j.AnswerMS)
		}
	}
	r.Dists = nil
	for _, path := range slackgate.Paths {
		r.Dists = append(r.Dists, first[path].dist("first byte, "+path.String()), wait[path].dist("wait, "+path.String()),
			age[path].dist("queue age at admission, "+path.String()))
	}
	r.Dists = append(r.Dists, slack.dist("slack at admission"), refused.dist("time to reject"), told.dist("time to verdict"),
		answer.dist("usable answer, from intended send"), lag.dist("sent late by"))
	r.Dists = slices.DeleteFunc(r.Dists, func(d Dist) bool { return d.N == 0 })
	m["told_p99_ms"], m["told_max_ms"] = float64(told.h.ValueAtQuantile(99)), float64(told.h.Max())
	m["answer_p50_ms"] = float64(answer.h.ValueAtQuantile(50))
	m["send_lag_p99_ms"] = float64(lag.h.ValueAtQuantile(99))
}

// books adds what the ledgers, the backends and the checks say.
func (r *Run) books() {
	m := r.Metrics
	m["paid_cost_micro"], m["free_cost_micro"], m["unknown_attempts"] = 0, 0, 0
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
		m["twice_answered"] = 0
	}
	whole := map[int]int{}
	for i := range r.Calls {
		if c := &r.Calls[i]; c.Job >= 0 && (c.Ended == "ok" || c.Ended == "abandoned") {
			whole[c.Job]++
		}
	}
	for _, n := range whole {
		if n > 1 {
			m["twice_answered"]++
		}
	}
	m["ledger_problems"] = 0
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

// number prints a value for a message.
func number(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
