//go:build bench

package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"leeway/broker"
)

// lifeJobs is how many jobs one round takes from their submission to their end.
const lifeJobs = 3000

// life is what a job costs from its submission to its outcome on a backend that
// answers at once, beside as many tasks through bare asynq: enqueue, process,
// done. The backend's end of the call is in the process's time of the one and
// not of the other.
func life(t *testing.T, r *Report) {
	for _, slots := range []int{16, 128, 512} {
		g := newGate(t, 0, 100)
		a, trips := newWorker(t, g, slots, 0)
		go func() { // nobody looks at the single calls
			for range a.called {
				<-a.ended
			}
		}()
		var subjects, bases []Taken
		var commands, calls []float64
		ended, bare := int64(0), g.asynqServer(slots)
		for range *rounds {
			bases = append(bases, g.take(func() float64 { return perSecond(lifeJobs, func() { g.bareLives(bare) }) }))
			before, sent := g.commands(), trips.n.Load()
			subjects = append(subjects, g.take(func() float64 {
				return perSecond(lifeJobs, func() {
					g.callers(32, lifeJobs, func() {
						_, err := g.submit(context.Background(), time.Hour, true)
						must(t, err)
					})
					ended += lifeJobs
					g.until(func() bool { return g.usable() >= ended })
				})
			}))
			commands = append(commands, (g.commands()-before)/lifeJobs)
			calls = append(calls, float64(trips.n.Load()-sent)/lifeJobs)
		}
		m := g.told(Rounds(fmt.Sprintf("whole life / bare asynq, %d slots", slots), subjects, bases))
		redis := Costs("", subjects, bases)
		r.Measures = append(r.Measures,
			note(m, "submitted by 32 callers, 1.5 KB of text, a backend that answers at once in the same process"),
			note(Values(fmt.Sprintf("Redis' processor time a life, %d slots", slots), "us", []float64{redis.CPU[0].Redis}),
				fmt.Sprintf("a bare task's is %.0f us", redis.CPU[1].Redis)),
			note(Values(fmt.Sprintf("Redis commands a life, %d slots", slots), "", commands), "within scripts, too"),
			note(Values(fmt.Sprintf("worker's commands to Redis a life, %d slots", slots), "", calls), "asynq's, and the process's loops, included"))
	}
}

// perSecond is the rate at which n pieces of work were done.
func perSecond(n int, work func()) float64 {
	began := time.Now()
	work()
	return float64(n) / time.Since(began).Seconds()
}

// callers does a piece of work n times, by so many at once.
func (g *gate) callers(at, n int, work func()) {
	var wg sync.WaitGroup
	for i := range at {
		wg.Go(func() {
			for range (n + at - 1 - i) / at {
				work()
			}
		})
	}
	wg.Wait()
}

func (g *gate) until(done func() bool) {
	for began := time.Now(); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			g.t.Fatal("not done within a minute")
		}
	}
}

// usable is how many jobs have ended well.
func (g *gate) usable() int64 {
	n, err := g.rdb.HGet(context.Background(), "{"+g.prefix+"}:totals", "outcome:paid:"+string(broker.OutcomeUsable)).Int64()
	if err != nil {
		return 0
	}
	return n
}

// asynqServer processes bare tasks, which wake it once all of a round are done.
func (g *gate) asynqServer(slots int) *sync.WaitGroup {
	var left sync.WaitGroup
	srv := asynq.NewServer(asynq.RedisClientOpt{Addr: g.redis.Addr()}, asynq.Config{
		Concurrency: slots, Queues: map[string]int{"bare": 1}, LogLevel: asynq.FatalLevel,
	})
	must(g.t, srv.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { left.Done(); return nil })))
	g.t.Cleanup(srv.Shutdown)
	return &left
}

func (g *gate) bareLives(left *sync.WaitGroup) {
	left.Add(lifeJobs)
	g.callers(32, lifeJobs, func() {
		_, err := g.enqueue(context.Background(), 0)
		must(g.t, err)
	})
	left.Wait()
}

// commands is how many commands Redis has carried out, those of scripts included.
func (g *gate) commands() (n float64) {
	for _, r := range g.servers {
		info, err := r.Info(context.Background(), "commandstats").Result()
		must(g.t, err)
		for line := range strings.Lines(info) {
			if _, rest, ok := strings.Cut(line, ":calls="); ok {
				calls, _, _ := strings.Cut(rest, ",")
				v, err := strconv.ParseFloat(calls, 64)
				must(g.t, err)
				n += v
			}
		}
	}
	return n
}
