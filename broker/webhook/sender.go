package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"leeway/broker"
	"leeway/broker/background"
	"leeway/broker/faultpoint"
	"leeway/broker/store"
)

const (
	// MostAtOnce is how many attempts at one target a process has under way;
	// one, while the target fails.
	MostAtOnce = 8
	// pollEvery is how often a process looks for ends that are due.
	pollEvery = 250 * time.Millisecond
	// lease is how long an end that was taken is left to its taker.
	lease = Timeout + 5*time.Second
	// firstPause follows the first attempt; each further one is twice as long,
	// up to maxPause.
	firstPause = 5 * time.Second
	maxPause   = 10 * time.Minute
	// stopGrace is how long attempts under way may still take when a process
	// stops. What is cut is told again when its lease is over.
	stopGrace = 2 * time.Second
)

// EventEnded is the type of the one event there is.
const EventEnded = "job.ended"

// Event is what a webhook is told.
type Event struct {
	Type string `json:"type"`
	// Timestamp is when the job ended, in RFC 3339, on the store's clock.
	Timestamp string `json:"timestamp"`
	// Data is the job as GET /v1/jobs/{id} shows it, without the answer.
	Data *broker.Job `json:"data"`
}

// MessageID names the message about a job's end, the same in every attempt.
func MessageID(job string) string { return "msg_" + job }

// NewEvent is the body of the message about a job's end.
func NewEvent(v *broker.Job) ([]byte, error) {
	at := time.UnixMilli(v.AcceptedAtMS + v.ElapsedMS).UTC().Format("2006-01-02T15:04:05.000Z07:00")
	return json.Marshal(Event{Type: EventEnded, Timestamp: at, Data: v})
}

// timestamp is a time as the signature holds it.
func timestamp(t time.Time) string {
	return strconv.FormatInt(t.Unix(), 10) //nolint:forbidigo // the store's clock, in the unit of the header
}

// Sender tells ends. Any number of processes may have one on the same store.
// Create it with [NewSender].
type Sender struct {
	store      store.Store
	background *background.Group
	log        *slog.Logger

	mu      sync.Mutex // guards what follows
	targets Targets
	state   map[string]*state // by producer

	wake chan struct{} // an attempt has ended, and more ends may be due
	wg   sync.WaitGroup
}

// state is what a process knows of one target.
type state struct {
	busy    int
	failing bool
	more    bool // the last look gave as many as were asked for
}

// NewSender returns a sender; Run sends. A panic in an attempt is a failure of
// the group.
func NewSender(s store.Store, g *background.Group, log *slog.Logger, t Targets) *Sender {
	return &Sender{store: s, background: g, log: log, targets: t, state: map[string]*state{}, wake: make(chan struct{}, 1)}
}

// SetTargets takes the place of the targets. What is under way ends at the old
// ones.
func (s *Sender) SetTargets(t Targets) {
	s.mu.Lock()
	old := s.targets
	s.targets = t
	s.mu.Unlock()
	old.Close()
}

// Producers are those that have a target, sorted.
func (s *Sender) Producers() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.targets))
}

// Run sends what is due until ctx is done, and waits for what is under way.
// The store being away is no failure: it goes on when the store does.
func (s *Sender) Run(ctx context.Context) error {
	attempts, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		grace := time.AfterFunc(stopGrace, cut)
		s.wg.Wait()
		grace.Stop()
		cut()
		s.SetTargets(nil)
	}()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	away := false
	for {
		err := s.look(ctx, attempts)
		if err != nil && ctx.Err() == nil && !away {
			s.log.Warn("webhooks cannot reach the store", "error", err)
		}
		away = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-s.wake:
		}
	}
}

// look takes what is due and not more than is free for each target. The
// attempts end with their own context.
func (s *Sender) look(ctx, attempts context.Context) error {
	due, targets := s.free()
	if len(due) == 0 {
		return nil
	}
	due, err := s.store.DueWebhooks(ctx, due...)
	if err != nil || len(due) == 0 {
		return err
	}
	ends, err := s.store.TakeWebhooks(ctx, lease, due...)
	if err != nil {
		return err
	}
	got := map[string]int{}
	for i := range ends {
		got[ends[i].Producer]++
	}
	s.mu.Lock()
	for _, d := range due {
		st := s.state[d.Producer]
		st.more = got[d.Producer] == d.Most
		st.busy += got[d.Producer]
	}
	s.mu.Unlock()
	for i := range ends {
		u := &ends[i]
		s.wg.Go(func() {
			s.background.Guard("webhook", func() { s.attempt(attempts, targets[u.Producer], u) })
			s.freed(u.Producer)
		})
	}
	return nil
}

// free is how many ends each target may be told of now.
func (s *Sender) free() (due []broker.WebhookDue, targets Targets) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.targets {
		st := s.state[name]
		if st == nil {
			st = &state{}
			s.state[name] = st
		}
		most := MostAtOnce
		if st.failing {
			most = 1
		}
		if n := most - st.busy; n > 0 {
			due = append(due, broker.WebhookDue{Producer: name, Most: n})
		}
	}
	return due, maps.Clone(s.targets)
}

func (s *Sender) freed(producer string) {
	s.mu.Lock()
	st := s.state[producer]
	st.busy--
	more := st.more
	s.mu.Unlock()
	if more {
		select {
		case s.wake <- struct{}{}:
		default: // it is awake
		}
	}
}

// attempt tells one end and puts down what came of it.
func (s *Sender) attempt(ctx context.Context, t *Target, u *broker.Untold) {
	if u.Err != nil {
		s.settle(ctx, u, broker.WebhookGivenUp, 0, u.Err)
		return
	}
	body, err := NewEvent(u.Job)
	if err != nil {
		s.settle(ctx, u, broker.WebhookGivenUp, 0, err)
		return
	}
	err = t.Tell(ctx, MessageID(u.JobID), time.UnixMilli(s.store.NowMS()), body)
	if err != nil && ctx.Err() != nil {
		return // the process stops: another attempt follows when the lease is over
	}
	faultpoint.Reach(faultpoint.Told)
	s.saw(u.Producer, err)
	status, _ := errors.AsType[*StatusError](err)
	switch {
	case err == nil:
		s.settle(ctx, u, broker.WebhookDelivered, 0, nil)
	case status != nil && status.Status == http.StatusGone:
		s.settle(ctx, u, broker.WebhookGivenUp, 0, err)
	default:
		next := pause(u.Attempt)
		if status != nil {
			next = max(next, status.RetryAfter)
		}
		s.settle(ctx, u, broker.WebhookFailed, next, err)
	}
}

// settle puts down a result. When the store is away, the end is told again
// after its lease.
func (s *Sender) settle(ctx context.Context, u *broker.Untold, r broker.WebhookResult, next time.Duration, cause error) {
	got, err := s.store.SettleWebhook(context.WithoutCancel(ctx), u, r, next)
	if err != nil {
		s.log.Warn("webhook: the result could not be put down", "job_id", u.JobID, "producer", u.Producer, "result", string(r), "error", err)
		return
	}
	if got == broker.WebhookGivenUp {
		s.log.Warn("webhook given up", "job_id", u.JobID, "producer", u.Producer, "attempts", u.Attempt, "error", cause)
	}
}

// saw notes whether a target takes what it is told, and says when that changes.
func (s *Sender) saw(producer string, err error) {
	s.mu.Lock()
	st := s.state[producer]
	was := st.failing
	st.failing = err != nil
	s.mu.Unlock()
	switch {
	case err != nil && !was:
		s.log.Warn("webhook fails", "producer", producer, "error", err)
	case err == nil && was:
		s.log.Info("webhook takes messages again", "producer", producer)
	}
}

// pause is the time between an attempt and the next one: twice the last, with
// up to a fifth of it more or less, so that what failed together does not come
// again together.
func pause(attempt int64) time.Duration {
	d := firstPause
	for range min(attempt-1, 20) {
		if d *= 2; d >= maxPause {
			d = maxPause
			break
		}
	}
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
