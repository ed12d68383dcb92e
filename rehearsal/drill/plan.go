// Package drill plays declared workloads and faults against a Leeway (one in
// this process, a deployment given by its address, or the simulator) and
// collects the evidence of what became of every job.
package drill

import (
	"bytes"
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"leeway/broker/config"
	"leeway/broker/flag"
	"leeway/rehearsal/lab"
	"leeway/slackgate"
)

//go:embed plans/*.yaml
var planFiles embed.FS

// Bounds of a plan.
const (
	// MaxJobs is how many jobs a drill submits at most.
	MaxJobs = 20_000
	// MaxLengthMS is how long its arrivals last at most.
	MaxLengthMS  = 30 * 60 * 1000
	maxPlanBytes = 64 << 10
	maxEvents    = 64
)

// Plan declares a drill: workload, pools, faults and thresholds. All of it is
// printed before anything starts.
type Plan struct {
	Name string `yaml:"name" json:"name"`
	// About says in one line what is rehearsed.
	About string `yaml:"about" json:"about"`
	// Policy is predictive unless set.
	Policy slackgate.Rule `yaml:"policy" json:"policy"`
	// RecheckOff is for drills that are to fail: the check before a backend is
	// called is left out.
	RecheckOff bool  `yaml:"recheck_off" json:"recheck_off,omitempty"`
	Class      Class `yaml:"class" json:"class"`
	Paid       Pool  `yaml:"paid" json:"paid"`
	Free       Pool  `yaml:"free" json:"free"`
	// RedisTimeoutMS bounds a call to the embedded store. Defaults to 2000.
	RedisTimeoutMS int64 `yaml:"redis_timeout_ms" json:"redis_timeout_ms,omitempty"`

	Arrivals []Arrivals `yaml:"arrivals" json:"arrivals"`
	// WarmupMS is how long the queues take to fill: jobs sent until then belong
	// to no phase.
	WarmupMS int64   `yaml:"warmup_ms" json:"warmup_ms,omitempty"`
	Events   []Event `yaml:"events" json:"events,omitempty"`
	// Contrast names a backend to which the same arrivals go straight, without
	// Leeway, before the drill itself; empty: none.
	Contrast   string      `yaml:"contrast" json:"contrast,omitempty"`
	Thresholds []Threshold `yaml:"thresholds" json:"thresholds"`
}

// Class is the class of the drill's jobs.
type Class struct {
	DeadlineMS int64             `yaml:"deadline_ms" json:"deadline_ms"`
	ReserveMS  int64             `yaml:"reserve_ms" json:"reserve_ms"`
	Prefer     config.Preference `yaml:"prefer" json:"prefer"`
}

// Pool is one pool and the lab backends behind it.
type Pool struct {
	Slots int   `yaml:"slots" json:"slots"`
	P95MS int64 `yaml:"p95_ms" json:"p95_ms"`
	// HoldP95MS defaults to P95MS, CapMS to none.
	HoldP95MS int64 `yaml:"hold_p95_ms" json:"hold_p95_ms,omitempty"`
	CapMS     int64 `yaml:"cap_ms" json:"cap_ms,omitempty"`
	Labs      []Lab `yaml:"labs" json:"labs,omitempty"`
}

// Lab is one lab backend: how fast it is when nothing is wrong.
type Lab struct {
	Name      string `yaml:"name" json:"name"`
	FirstByte string `yaml:"first_byte" json:"first_byte"`
	Tail      string `yaml:"tail" json:"tail,omitempty"`
	// Slots is the backend's own limit; 0: none.
	Slots int `yaml:"slots" json:"slots,omitempty"`
	// P95MS is what is declared of it. Defaults to the pool's.
	P95MS int64 `yaml:"p95_ms" json:"p95_ms,omitempty"`
}

// Arrivals are jobs on a schedule: PerSecond evenly for ForMS, or Count at once
// every EveryMS for ForMS (once, if that is 0).
type Arrivals struct {
	FromMS    int64   `yaml:"from_ms" json:"from_ms"`
	ForMS     int64   `yaml:"for_ms" json:"for_ms,omitempty"`
	PerSecond float64 `yaml:"per_second" json:"per_second,omitempty"`
	Count     int     `yaml:"count" json:"count,omitempty"`
	EveryMS   int64   `yaml:"every_ms" json:"every_ms,omitempty"`
	// OutputTokens limits the answers; 0: the class's limit.
	OutputTokens int `yaml:"output_tokens" json:"output_tokens,omitempty"`
}

// Action is what an event does. The set is closed.
type Action string

// The actions.
const (
	DoFault      Action = "fault"       // On: a lab; Fault, MS, Count as package lab has them
	DoHeal       Action = "heal"        // On: a lab
	DoFlag       Action = "flag"        // On: a flag; Value
	DoClearFlag  Action = "clear-flag"  // On: a flag
	DoKillWorker Action = "kill-worker" // the first worker, or On: that of a pool, as by SIGKILL
	DoAddWorker  Action = "add-worker"  // one more like the first
	DoPauseStore Action = "pause-store" // as by SIGSTOP
	DoWakeStore  Action = "wake-store"  // as by SIGCONT
)

// mending has what ends each action that breaks something.
var mending = map[Action]Action{
	DoFault: DoHeal, DoFlag: DoClearFlag, DoKillWorker: DoAddWorker, DoPauseStore: DoWakeStore,
}

// Event is something that is done to the deployment at a time. What is due at
// or before 0 is done before the first job.
type Event struct {
	AtMS  int64  `yaml:"at_ms" json:"at_ms"`
	Do    Action `yaml:"do" json:"do"`
	On    string `yaml:"on" json:"on,omitempty"`
	Fault string `yaml:"fault" json:"fault,omitempty"`
	MS    int64  `yaml:"ms" json:"ms,omitempty"`
	Count int    `yaml:"count" json:"count,omitempty"`
	Value string `yaml:"value" json:"value,omitempty"`
}

// String is the event in words.
func (e *Event) String() string {
	s := string(e.Do)
	if e.On != "" {
		s += " " + e.On
	}
	if e.Fault != "" {
		s += " " + e.Fault
	}
	if e.MS > 0 {
		s += fmt.Sprintf(" after %d ms", e.MS)
	}
	if e.Count > 0 {
		s += fmt.Sprintf(", %d requests", e.Count)
	}
	if e.Value != "" {
		s += "=" + e.Value
	}
	return s
}

// done is the event as carried out when it was due.
func (e *Event) done() Done {
	d := Done{AtMS: e.AtMS, What: e.String(), Breaks: mending[e.Do] != ""}
	for _, mends := range mending {
		d.Mends = d.Mends || e.Do == mends
	}
	return d
}

// Plans returns every plan that is built in, in the order in which they are
// best run.
func Plans() []*Plan {
	var out []*Plan
	for _, name := range order {
		p, err := Named(name)
		if err != nil {
			panic(err) // compiled in, and read by a test
		}
		out = append(out, p)
	}
	return out
}

// order of the built-in plans.
var order = []string{
	"declared", "burst", "unbounded", "attempt-counted", "free-slow", "free-held", "free-empty",
	"primary-slow", "primary-hangs", "one-hang", "both-slow", "flap", "breaker-open", "kill-worker", "worker-back", "free-lost", "redis-pause", "redis-stutters", "flag-flip", "drain",
}

// Named returns a built-in plan.
func Named(name string) (*Plan, error) {
	doc, err := planFiles.ReadFile(path.Join("plans", name+".yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no drill is called %.60q: want one of %s", name, strings.Join(order, ", "))
	}
	if err != nil {
		return nil, err
	}
	return ParsePlan(doc)
}

// ReadPlan reads a plan from a file.
func ReadPlan(file string) (*Plan, error) {
	doc, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	p, err := ParsePlan(doc)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return p, nil
}

// ParsePlan reads a plan strictly: an unknown key, or a value out of range, is
// an error that names it.
func ParsePlan(doc []byte) (*Plan, error) {
	if len(doc) > maxPlanBytes {
		return nil, fmt.Errorf("plan: larger than %d bytes", maxPlanBytes)
	}
	var p Plan
	if err := yaml.NewDecoder(bytes.NewReader(doc), yaml.Strict(), yaml.DisallowUnknownField()).Decode(&p); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	return &p, p.Complete()
}

var nameForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)

// Complete fills in defaults and checks the plan.
func (p *Plan) Complete() error {
	if err := p.complete(); err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	return nil
}

func (p *Plan) complete() error {
	c := &p.Class
	c.Prefer = cmp.Or(c.Prefer, config.PaidFirst)
	p.RedisTimeoutMS = cmp.Or(p.RedisTimeoutMS, 2000)
	_, preferKnown := c.Prefer.Paths()
	switch {
	case !nameForm.MatchString(p.Name):
		return fmt.Errorf("name %.80q: use a-z, 0-9 and '-'", p.Name)
	case c.DeadlineMS < 1 || c.DeadlineMS > longestMS:
		return fmt.Errorf("class.deadline_ms is %d: want 1 to 24 h", c.DeadlineMS)
	case c.ReserveMS < 0 || c.ReserveMS >= c.DeadlineMS:
		return fmt.Errorf("class.reserve_ms is %d: want 0 or more, below the deadline", c.ReserveMS)
	case !preferKnown:
		return fmt.Errorf("class.prefer: %.40q is unknown", c.Prefer)
	case len(p.Events) > maxEvents:
		return fmt.Errorf("%d events: want at most %d", len(p.Events), maxEvents)
	case len(p.Thresholds) == 0:
		return errors.New("thresholds: none: a drill without one cannot fail")
	}
	if _, err := p.Schedule(); err != nil {
		return err
	}
	names, err := p.completePools()
	if err != nil {
		return err
	}
	for i := range p.Events {
		if err := p.Events[i].check(names); err != nil {
			return fmt.Errorf("events[%d]: %w", i, err)
		}
		if i > 0 && p.Events[i].AtMS < p.Events[i-1].AtMS {
			return fmt.Errorf("events[%d]: at_ms is before the one above it", i)
		}
	}
	if p.Contrast != "" && !slices.Contains(names, p.Contrast) {
		return fmt.Errorf("contrast: no lab is called %.60q", p.Contrast)
	}
	for _, t := range p.Thresholds {
		if !known(t.Metric, names) {
			return fmt.Errorf("thresholds: no metric is called %.60q", t.Metric)
		}
	}
	return nil
}

func (p *Plan) completePools() (names []string, err error) {
	if p.Paid.Slots == 0 && p.Free.Slots == 0 {
		return nil, errors.New("both pools have no slots")
	}
	for _, path := range slackgate.Paths {
		pool := p.Pool(path)
		switch {
		case pool.Slots < 0 || pool.Slots > config.MaxSlots:
			return nil, fmt.Errorf("%s.slots is %d: want 0 to %d", path, pool.Slots, config.MaxSlots)
		case pool.Slots == 0:
			continue
		case pool.P95MS < 1:
			return nil, fmt.Errorf("%s.p95_ms: want 1 or more", path)
		}
		pool.HoldP95MS = cmp.Or(pool.HoldP95MS, pool.P95MS)
		for i := range pool.Labs {
			l := &pool.Labs[i]
			if !nameForm.MatchString(l.Name) || slices.Contains(names, l.Name) {
				return nil, fmt.Errorf("%s.labs[%d].name: %.60q is bad or used twice", path, i, l.Name)
			}
			names = append(names, l.Name)
			l.Tail = cmp.Or(l.Tail, "0")
			l.P95MS = cmp.Or(l.P95MS, pool.P95MS)
			if _, err := lab.ParseProfile(l.FirstByte); err != nil {
				return nil, fmt.Errorf("%s.labs[%d].first_byte: %w", path, i, err)
			}
			if _, err := lab.ParseTail(l.Tail); err != nil {
				return nil, fmt.Errorf("%s.labs[%d].tail: %w", path, i, err)
			}
		}
	}
	return names, nil
}

func (e *Event) check(labs []string) error {
	switch e.Do {
	case DoFault, DoHeal:
		if !slices.Contains(labs, e.On) {
			return fmt.Errorf("on: no lab is called %.60q", e.On)
		}
		if e.Do == DoFault && e.Fault == "" {
			return errors.New("fault: is missing")
		}
	case DoFlag:
		name, err := flag.Parse(e.On)
		if err != nil {
			return err
		}
		return name.Check(e.Value)
	case DoKillWorker:
		if e.On != "" && e.On != slackgate.Paid.String() && e.On != slackgate.Free.String() {
			return fmt.Errorf("on: no pool is called %.60q", e.On)
		}
	case DoClearFlag, DoAddWorker, DoPauseStore, DoWakeStore:
	default:
		return fmt.Errorf("do: %.40q is unknown", e.Do)
	}
	return nil
}

// Pool is a path's pool.
func (p *Plan) Pool(path slackgate.Path) *Pool {
	if path == slackgate.Paid {
		return &p.Paid
	}
	return &p.Free
}

// Apart names the pool whose worker is killed alone: the pools then have workers
// of their own. Reject: one worker serves both.
func (p *Plan) Apart() slackgate.Path {
	for i := range p.Events {
		for _, path := range slackgate.Paths {
			if e := &p.Events[i]; e.Do == DoKillWorker && e.On == path.String() {
				return path
			}
		}
	}
	return slackgate.Reject
}

// Arrival is one job of the schedule.
type Arrival struct {
	AtMS         int64
	OutputTokens int
}

// Schedule lists the arrivals in order of time.
func (p *Plan) Schedule() (out []Arrival, err error) {
	for i, a := range p.Arrivals {
		bad := func(what string) error { return fmt.Errorf("arrivals[%d]: %s", i, what) }
		evenly, atOnce := a.PerSecond > 0 && a.Count == 0, a.Count > 0 && a.PerSecond == 0 && a.Count <= MaxJobs
		n := int64(float64(a.ForMS) / 1000 * a.PerSecond)
		switch {
		case a.FromMS < 0 || a.ForMS < 0 || a.FromMS+a.ForMS > MaxLengthMS:
			return nil, bad("from_ms and for_ms: want 0 or more, together at most 30 min")
		case !evenly && !atOnce:
			return nil, bad("want per_second or count")
		case evenly && n > MaxJobs:
			return nil, bad("too many jobs")
		case atOnce && a.ForMS > 0 && a.EveryMS < 10:
			return nil, bad("every_ms: want 10 or more")
		}
		for k := range n {
			out = append(out, Arrival{a.FromMS + int64(float64(k)*1000/a.PerSecond), a.OutputTokens})
		}
		for at := a.FromMS; atOnce && len(out) <= MaxJobs; at += a.EveryMS {
			out = append(out, slices.Repeat([]Arrival{{at, a.OutputTokens}}, a.Count)...)
			if a.EveryMS == 0 || at+a.EveryMS >= a.FromMS+a.ForMS {
				break
			}
		}
		if len(out) > MaxJobs {
			return nil, bad(fmt.Sprintf("more than %d jobs in all", MaxJobs))
		}
	}
	if len(out) == 0 {
		return nil, errors.New("arrivals: none")
	}
	slices.SortStableFunc(out, func(a, b Arrival) int { return cmp.Compare(a.AtMS, b.AtMS) })
	return out, nil
}

// WithoutContrast is the plan for where no backend can be asked directly. It
// reports what is left out with it; empty: nothing.
func (p *Plan) WithoutContrast() (*Plan, string) {
	if p.Contrast == "" {
		return p, ""
	}
	out := *p
	out.Contrast = ""
	out.Thresholds = slices.DeleteFunc(slices.Clone(p.Thresholds), func(t Threshold) bool { return strings.HasPrefix(t.Metric, "direct_") })
	return &out, "the same callers straight to " + p.Contrast + ", and its thresholds: the backend cannot be asked directly"
}

// DeclareP95 declares a part of the true p95s, in percent, for a drill that is
// to fail. 100 changes nothing.
func (p *Plan) DeclareP95(percent int) error {
	if percent < 1 || percent > 1000 {
		return fmt.Errorf("p95 percent: want 1 to 1000")
	}
	for _, path := range slackgate.Paths {
		pool := p.Pool(path)
		if pool.Slots == 0 {
			continue
		}
		scale := func(ms *int64) { *ms = max(1, *ms*int64(percent)/100) }
		scale(&pool.P95MS)
		scale(&pool.HoldP95MS)
		for i := range pool.Labs {
			scale(&pool.Labs[i].P95MS)
		}
	}
	return nil
}
