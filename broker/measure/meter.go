// Package measure keeps what is believed about the pools' and backends'
// latencies up to date, from the calls that all workers have counted in the
// store.
package measure

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"leeway/broker"
	"leeway/slackgate"
	"leeway/slackgate/latency"
)

// Every is how often the store is read.
const Every = time.Second

// fine is how many of the newest slices stand alone; older ones are merged by
// the minute, so that memory does not grow with the window.
const fine = 60_000 / latency.SliceMS

// widest is how many slices the widest window has.
const widest = 15 * 60_000 / latency.SliceMS

// Subject is something whose latency is measured: a pool or a backend.
type Subject struct {
	// Name as in [latency.Series].
	Name string
	// Declared is what is believed without measurements.
	Declared slackgate.Belief
	// Path is the pool whose jobs in flight count, for a pool; else Reject.
	Path slackgate.Path
}

// PoolName is the series name of a pool.
func PoolName(p slackgate.Path) string { return "pool." + p.String() }

// BackendName is the series name of a backend.
func BackendName(name string) string { return "backend." + name }

// Measured is what is believed about a subject now.
type Measured struct {
	Declared        slackgate.Belief
	FirstByte, Hold latency.Estimate
}

// Belief is the measurements as the gate takes them.
func (m *Measured) Belief() slackgate.Belief {
	return latency.Belief(&m.Declared, &m.FirstByte, &m.Hold)
}

// State is where the gate's pool state comes from.
type State interface {
	State(ctx context.Context, policy [slackgate.NumPaths]broker.PoolPolicy) (*broker.GateState, error)
	Slices(ctx context.Context, series []latency.Series, from, to int64) ([][]*latency.Histogram, error)
}

// Meter measures. Create it with [New].
type Meter struct {
	store  State
	policy func() [slackgate.NumPaths]broker.PoolPolicy
	log    *slog.Logger

	reading   chan struct{}       // holds a place; whoever has it reads the store, and uses what follows
	readAt    time.Time           // when the last reading began
	readErr   error               // how it ended
	history   map[string]*history // by series
	estimator latency.Estimator

	mu       sync.RWMutex // guards subjects and now
	subjects []Subject
	now      map[string]Measured
}

// history is the slices of one series: number of slice to counts, the older
// ones merged by the minute under the minute's first slice.
type history struct {
	slices map[int64]*latency.Histogram
	read   int64 // the newest slice that is complete in slices
}

// New returns a meter that believes what is declared.
func New(store State, policy func() [slackgate.NumPaths]broker.PoolPolicy, log *slog.Logger, subjects []Subject) *Meter {
	m := &Meter{store: store, policy: policy, log: log, history: map[string]*history{}, reading: make(chan struct{}, 1)}
	m.SetSubjects(subjects)
	return m
}

// SetSubjects replaces what is measured. What is known of a subject that stays
// is kept.
func (m *Meter) SetSubjects(subjects []Subject) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := make(map[string]Measured, len(subjects))
	for _, s := range subjects {
		known, ok := m.now[s.Name]
		if !ok || known.Declared != s.Declared {
			known = Measured{
				Declared:  s.Declared,
				FirstByte: latency.Estimate{Dist: s.Declared.FirstByte, Change: 1},
				Hold:      latency.Estimate{Dist: s.Declared.Hold, Change: 1},
			}
		}
		now[s.Name] = known
	}
	m.subjects, m.now = subjects, now
}

// Get returns what is believed about a subject; the zero value for one that is
// not measured.
func (m *Meter) Get(name string) Measured {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.now[name]
}

// Subjects are what is measured, in the order given to New.
func (m *Meter) Subjects() []Subject {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.subjects
}

// Run measures until ctx is done. With the store away the last beliefs stand.
func (m *Meter) Run(ctx context.Context) error {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	away := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := m.Once(ctx)
		if err != nil && ctx.Err() == nil && !away {
			m.log.Warn("latencies not read", "error", err)
		}
		away = err != nil
	}
}

// Once reads what is new and works out the beliefs.
func (m *Meter) Once(ctx context.Context) error { return m.Since(ctx, time.Now()) }

// Since is Once, unless that was done or tried since an instant.
func (m *Meter) Since(ctx context.Context, at time.Time) error {
	select {
	case m.reading <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-m.reading }()
	if m.readAt.After(at) {
		return m.readErr
	}
	m.readAt = time.Now()
	m.readErr = m.once(ctx)
	return m.readErr
}

func (m *Meter) once(ctx context.Context) error {
	st, err := m.store.State(ctx, m.policy())
	if err != nil {
		return err
	}
	subjects := m.Subjects()
	if err := m.read(ctx, subjects, latency.SliceOf(st.NowMS)); err != nil {
		return err
	}
	now := make(map[string]Measured, len(subjects))
	for _, s := range subjects {
		var silent, running []int64
		if s.Path != slackgate.Reject {
			silent, running = st.SilentAges[s.Path], st.RunningAges[s.Path]
		}
		series := seriesOf(s)
		now[s.Name] = Measured{
			Declared:  s.Declared,
			FirstByte: m.estimator.Estimate(m.history[series[0].Key()].newestFirst(st.NowMS), silent, s.Declared.FirstByte),
			Hold:      m.estimator.Estimate(m.history[series[1].Key()].newestFirst(st.NowMS), running, s.Declared.Hold),
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.subjects { // they may have been replaced meanwhile
		if n, ok := now[s.Name]; ok && n.Declared == s.Declared {
			m.now[s.Name] = n
		}
	}
	return nil
}

func seriesOf(s Subject) [2]latency.Series {
	return [2]latency.Series{{Name: s.Name, Kind: latency.FirstByte}, {Name: s.Name, Kind: latency.Hold}}
}

// read brings every history up to the slice that is being filled now.
func (m *Meter) read(ctx context.Context, subjects []Subject, current int64) error {
	// A call may be counted a moment after its slice has ended, so the one
	// before the current is read again too.
	oldest := current - 1
	var series []latency.Series
	for _, s := range subjects {
		for _, x := range seriesOf(s) {
			series = append(series, x)
			h := m.history[x.Key()]
			if h == nil {
				h = &history{slices: map[int64]*latency.Histogram{}}
				m.history[x.Key()] = h
			}
			oldest = min(oldest, h.read+1)
		}
	}
	oldest = max(oldest, current-widest)
	got, err := m.store.Slices(ctx, series, oldest, current)
	if err != nil {
		return err
	}
	for i, x := range series {
		m.history[x.Key()].take(oldest, got[i], current)
	}
	return nil
}

// take stores what was read, merges what has grown old and drops what has
// left the widest window.
func (h *history) take(oldest int64, counts []*latency.Histogram, current int64) {
	for i := range counts {
		n := oldest + int64(i)
		if n <= h.read {
			continue
		}
		if counts[i] == nil {
			delete(h.slices, n)
			continue
		}
		h.slices[n] = counts[i]
	}
	h.read = max(h.read, current-2)
	for n, c := range h.slices {
		minute := n - n%fine
		switch {
		case n <= current-widest:
			delete(h.slices, n)
		case n > current-2*fine || n == minute:
		case h.slices[minute] == nil:
			h.slices[minute] = c
			delete(h.slices, n)
		default:
			h.slices[minute].Merge(c)
			delete(h.slices, n)
		}
	}
}

func (h *history) newestFirst(nowMS int64) []latency.Slice {
	current := latency.SliceOf(nowMS)
	out := make([]latency.Slice, 0, len(h.slices))
	for n := current; n > current-widest; n-- {
		if c := h.slices[n]; c != nil {
			out = append(out, latency.Slice{AgeMS: nowMS - n*latency.SliceMS, Calls: c})
		}
	}
	return out
}
