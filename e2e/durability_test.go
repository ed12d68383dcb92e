//go:build server

package e2e_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/wire"
	"leeway/rehearsal/redistest"
	"leeway/slackgate"
)

// Submissions a second while Redis dies.
const dyingRate = 200

// deathOf is one way for Redis to end.
type deathOf struct {
	name string
	end  func(testing.TB, *redistest.Server)
}

var killed = deathOf{"SIGKILL", func(_ testing.TB, s *redistest.Server) { s.Kill() }}

// dying is a deployment whose Redis dies under load. Jobs wait long, so that
// nearly all that was acknowledged is still to be done when it does.
func dying(t *testing.T, appendfsync string, start func(testing.TB, ...string) *redistest.Server) *stack {
	t.Helper()
	s := quick()
	// A disk that is busy makes a sync wait: how fast answers come is not tested.
	s.DeadlineMS, s.ReserveMS, s.RedisMS = 4*3600_000, 500, 3000
	s.PaidMS, s.PaidP95, s.FreeMS, s.FreeP95 = 100, 100, 100, 100
	d := deployOver(t, s, start(t, "--appendfsync", appendfsync))
	d.startWorker().outage = true
	d.startAPI().outage = true
	connections := http.DefaultTransport.(*http.Transport).Clone()
	connections.MaxIdleConnsPerHost = 64
	d.client.HTTP.Transport = connections
	t.Cleanup(connections.CloseIdleConnections)
	d.ready()
	return d
}

// acknowledged is an admission and when its producer heard of it.
type acknowledged struct {
	*submission

	at time.Time
}

// death is what one death of Redis came to.
type death struct {
	acknowledged, missing int
	// before is how long before the death the oldest missing job was
	// acknowledged.
	before time.Duration
}

// die submits at the rate for as long as given on either side of a death, and
// looks for every job that was acknowledged.
func (d *stack) die(how deathOf, before, after time.Duration) death {
	d.t.Helper()
	each := time.Second / dyingRate
	n := int((before + after) / each)
	acks := make(chan acknowledged, n)
	loaded := make(chan struct{})
	begun := time.Now()
	go func() {
		defer close(loaded)
		every(each, n, func(int) {
			if s := d.submit(client.Job{Text: text}); s.admitted() {
				acks <- acknowledged{s, time.Now()}
			}
		})
	}()
	<-time.After(time.Until(begun.Add(before)))
	died := time.Now()
	how.end(d.t, d.redis)
	d.redis.Run()
	<-loaded
	close(acks)
	d.ready()
	var out death
	var left []*submission
	for a := range acks {
		out.acknowledged++
		_, err := d.insist(func(ctx context.Context) error {
			_, err := d.client.Get(ctx, a.verdict.JobID, 0)
			return err
		})
		var p *wire.Problem
		switch {
		case errors.As(err, &p) && p.Status == http.StatusNotFound:
			out.missing++
			out.before = max(out.before, died.Sub(a.at))
			d.book.forget(a.submission)
		case err != nil:
			d.t.Errorf("job %s: %v", a.verdict.JobID, err)
		default:
			left = append(left, a.submission)
		}
	}
	// What still waits is taken back: the next death begins with nothing.
	together(8, func(i int) {
		for j := i; j < len(left); j += 8 {
			id := left[j].verdict.JobID
			tries, err := d.insist(func(ctx context.Context) error {
				_, err := d.client.Cancel(ctx, id)
				return err
			})
			var p *wire.Problem
			ended := errors.As(err, &p) && p.Status == http.StatusConflict
			if err != nil && !ended {
				d.t.Errorf("job %s: %v", id, err)
			}
			if tries > 1 {
				d.unheard.Store(id, true)
			}
		}
	})
	d.settled(time.Minute)
	return out
}

// insist asks until the store answers, and tells how often it asked.
func (d *stack) insist(ask func(ctx context.Context) error) (tries int, err error) {
	d.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; <-time.After(50 * time.Millisecond) {
		tries++
		err = ask(context.Background())
		var p *wire.Problem
		if !errors.As(err, &p) || slackgate.Reason(p.Reason) != slackgate.ReasonGateUnavailable || time.Now().After(end) {
			return tries, err
		}
	}
}

// forget takes a submission off the producers' book.
func (b *book) forget(s *submission) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subs = slices.DeleteFunc(b.subs, func(o *submission) bool { return o == s })
}

// TestRedisKilledAt200 kills Redis under 200 submissions a second, with every
// write on disk before it is acknowledged: no acknowledged job is missing, and
// every book agrees with every other.
func TestRedisKilledAt200(t *testing.T) {
	d := dying(t, "always", redistest.Start)
	got := d.die(killed, 1500*time.Millisecond, 1500*time.Millisecond)
	reasons := d.book.reasons()
	t.Logf("%d acknowledged, %d missing; answers %v, outcomes %v", got.acknowledged, got.missing, reasons, d.outcomes())
	if got.acknowledged < 50 || reasons[slackgate.ReasonGateUnavailable] == 0 {
		t.Errorf("%d acknowledged, answers %v: Redis did not die under load", got.acknowledged, reasons)
	}
	if got.missing > 0 {
		t.Errorf("%d acknowledged jobs are missing", got.missing)
	}
	d.balanced()
	d.audit(rules{unanswered: reasons[slackgate.ReasonGateUnavailable], uncalled: func(r *broker.SpendRow) bool {
		return lost(r) || r.Result == "cancelled" // taken back between the row and the call
	}})
}
