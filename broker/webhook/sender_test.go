package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"leeway/broker"
	"leeway/broker/background"
	"leeway/broker/config"
	"leeway/broker/shard"
	"leeway/broker/store"
	"leeway/broker/store/storetest"
	"leeway/rehearsal/pipenet"
	"leeway/rehearsal/redistest"
	"leeway/slackgate"
)

// told is a message that a target was sent.
type told struct {
	id    string
	at    time.Time
	event Event
}

// town is a store, a sender and targets, in virtual time.
type town struct {
	t      *testing.T
	redis  *miniredis.Miniredis
	store  store.Shard
	sender *Sender
	group  *background.Group
	log    bytes.Buffer

	mu    sync.Mutex
	calls map[string][]told
	open  map[string]int // calls under way
	most  map[string]int
}

// build makes a town whose producers' targets answer as given.
func build(t *testing.T, answers map[string]http.HandlerFunc) *town {
	t.Helper()
	t.Setenv("HOOK_SECRET", secret)
	w := &town{t: t, redis: miniredis.NewMiniRedis(), calls: map[string][]told{}, open: map[string]int{}, most: map[string]int{}}
	w.redis.ClockTTL(true)
	rdb := storetest.Dial(func(context.Context, string, string) (net.Conn, error) { return w.redis.Dial() })
	w.store = storetest.New(rdb, storetest.Options{Prefix: "t", Timeout: time.Second})
	targets := Targets{}
	for name, answer := range answers {
		transport := w.serve(name, answer)
		target, err := New("w", &config.Webhook{URL: "http://" + name + "/hook", SecretEnv: "HOOK_SECRET", AllowPrivate: true}, transport)
		must(t, err)
		targets[name] = target
	}
	log := slog.New(slog.NewTextHandler(&w.log, nil))
	w.group = background.New(context.Background(), log)
	w.sender = NewSender(shard.New(w.store), w.group, log, targets)
	w.group.Go("webhooks", w.sender.Run)
	t.Cleanup(func() {
		must(t, w.group.Stop())
		must(t, rdb.Close())
		w.redis.Close()
		redistest.RemainsIn(t, "t", w.redis)
		time.Sleep(time.Second) // the client's own goroutines see that they are done
	})
	must(t, w.store.Beat(t.Context(), broker.Worker{ID: "w", Path: slackgate.Paid, Slots: 1000}, 48*time.Hour))
	return w
}

// serve runs a target that checks signatures.
func (w *town) serve(name string, answer http.HandlerFunc) *http.Transport {
	verify, err := standardwebhooks.NewWebhook(secret)
	must(w.t, err)
	l := pipenet.Listen()
	srv := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		one := told{id: r.Header.Get("webhook-id"), at: time.Now()}
		if err := errors.Join(err, verify.Verify(body, r.Header), json.Unmarshal(body, &one.event)); err != nil {
			w.t.Errorf("%s: %v in %s", name, err, body)
		}
		w.mu.Lock()
		w.open[name]++
		w.most[name] = max(w.most[name], w.open[name])
		w.calls[name] = append(w.calls[name], one)
		w.mu.Unlock()
		answer(rw, r)
		w.mu.Lock()
		w.open[name]--
		w.mu.Unlock()
	})}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	w.t.Cleanup(func() {
		must(w.t, srv.Close())
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			w.t.Errorf("%s: %v", name, err)
		}
	})
	return &http.Transport{DialContext: l.DialContext, MaxIdleConnsPerHost: MostAtOnce}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// end admits a job, runs it and returns its record.
func (w *town) end(producer, id string) *broker.Job {
	w.t.Helper()
	ctx := w.t.Context()
	job := &broker.Submission{
		Spec: broker.Spec{
			ID: id, Class: "summary", Producer: producer, Text: "x", Prefer: [2]slackgate.Path{slackgate.Paid}, Metadata: map[string]string{"night": "17"}, Webhook: true,
		},
		DeadlineInMS: 60_000,
	}
	open := [2]slackgate.Bound{{
		Path: slackgate.Paid, MaxInFlight: slackgate.Unbounded, MaxQueueAgeMS: slackgate.Unbounded, MaxClassQueueAgeMS: slackgate.Unbounded,
	}}
	var policy [slackgate.NumPaths]broker.PoolPolicy
	policy[slackgate.Paid].Limit = 1000
	got, err := storetest.Admit(ctx, w.store, policy, broker.Offer{Job: job, LeftMS: 60_000, Bounds: open})
	must(w.t, err)
	if got.Jobs[0].Path != slackgate.Paid {
		w.t.Fatalf("not admitted: %+v", got)
	}
	c, _, err := w.store.Claim(ctx, slackgate.Paid, 1000, time.Minute)
	must(w.t, err)
	time.Sleep(70 * time.Millisecond)
	_, err = w.store.Finish(ctx, c, &broker.Finish{Outcome: broker.OutcomeUsable, Answer: "the answer", FirstByteMS: 50})
	must(w.t, err)
	v, err := w.store.Get(ctx, id)
	must(w.t, err)
	return v
}

func (w *town) told(name string) []told {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.calls[name])
}

func (w *town) count(name string, r broker.WebhookResult) int64 {
	w.t.Helper()
	tot, err := w.store.Totals(w.t.Context())
	must(w.t, err)
	return tot["webhook:"+string(r)+":"+name]
}

func (w *town) waiting(name string) int64 {
	w.t.Helper()
	n, err := w.store.WebhooksWaiting(w.t.Context(), []string{name})
	must(w.t, err)
	return n[name]
}

// left are the keys of webhooks that are left in the store.
func (w *town) left() (keys []string) {
	for _, k := range w.redis.Keys() {
		if strings.Contains(k, ":webhook") {
			keys = append(keys, k)
		}
	}
	return keys
}

// until waits, in virtual time, for a condition.
func (w *town) until(within time.Duration, what string, cond func() bool) {
	w.t.Helper()
	for begin := time.Now(); !cond(); time.Sleep(time.Second) {
		if time.Since(begin) > within {
			w.t.Fatalf("%s: not within %v", what, within)
		}
	}
}

// A target that answers 500 for an hour is tried with a growing pause, not
// hammered, and then takes each end once, with the id it had all the time.
func TestAnHourOfErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		w := build(t, map[string]http.HandlerFunc{"p": func(rw http.ResponseWriter, _ *http.Request) {
			if time.Since(begin) < time.Hour {
				rw.WriteHeader(http.StatusInternalServerError)
			}
		}})
		const jobs = 5
		want := map[string]*broker.Job{}
		for i := range jobs {
			id := fmt.Sprint("job-", i)
			want[MessageID(id)] = w.end("p", id)
		}
		w.until(2*time.Hour, "all are told", func() bool { return w.count("p", broker.WebhookDelivered) == jobs })
		took := time.Since(begin)
		tries, taken := map[string][]told{}, 0
		calls := w.told("p")
		for _, c := range calls {
			tries[c.id] = append(tries[c.id], c)
			if c.at.Sub(begin) >= time.Hour {
				taken++
			}
		}
		if len(tries) != jobs || taken != jobs {
			t.Errorf("%d messages, %d calls after the hour; want %d of each", len(tries), taken, jobs)
		}
		for id, all := range tries {
			v := want[id]
			if v == nil {
				t.Fatalf("%s is of no job", id)
			}
			for _, one := range all {
				e := one.event
				if e.Type != EventEnded || e.Data.ID != v.ID || e.Data.Outcome != broker.OutcomeUsable || e.Data.Answer != "" ||
					e.Data.Metadata["night"] != "17" || e.Data.ElapsedMS != v.ElapsedMS || e.Timestamp != all[0].event.Timestamp {
					t.Errorf("told %+v of %+v", e.Data, v)
				}
			}
			if at, err := time.Parse(time.RFC3339, all[0].event.Timestamp); err != nil || at.UnixMilli() != v.AcceptedAtMS+v.ElapsedMS {
				t.Errorf("timestamp %s, %v", all[0].event.Timestamp, err)
			}
			// 5 s, 10 s ... 320 s, then ten minutes each: some twelve in an hour.
			if len(all) < 9 || len(all) > 16 {
				t.Errorf("%s was offered %d times", id, len(all))
			}
		}
		t.Logf("%d jobs, %d calls, all told %v after the target came back", jobs, len(calls), (took - time.Hour).Round(time.Second))
		if took > time.Hour+12*time.Minute+time.Minute {
			t.Errorf("told %v after the target was back", took-time.Hour)
		}
		if n := w.count("p", broker.WebhookFailed); n != int64(len(calls)-jobs) {
			t.Errorf("%d failures are counted, %d calls failed", n, len(calls)-jobs)
		}
		if left := w.left(); len(left) != 0 || w.waiting("p") != 0 {
			t.Errorf("left behind: %v", left)
		}
		if got := w.log.String(); strings.Count(got, "webhook fails") != 1 || strings.Count(got, "takes messages again") != 1 {
			t.Errorf("the log: %s", got)
		}
	})
}

// A target that hangs is left after ten seconds, is called by one at a time
// while it fails, keeps nobody else's ends waiting, and is told in full when it
// is well.
func TestTargetHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		w := build(t, map[string]http.HandlerFunc{
			"hangs": func(_ http.ResponseWriter, r *http.Request) {
				if time.Since(begin) < 2*time.Minute {
					<-r.Context().Done()
				}
			},
			"well": func(http.ResponseWriter, *http.Request) {},
		})
		const each = 20
		for i := range each {
			w.end("hangs", fmt.Sprint("h", i))
			w.end("well", fmt.Sprint("w", i))
		}
		w.until(2*time.Second, "the other is told", func() bool { return len(w.told("well")) == each })
		if n := w.count("hangs", broker.WebhookFailed); n != 0 {
			t.Errorf("%d failures before the time is over", n)
		}
		time.Sleep(Timeout + time.Second)
		if n := w.count("hangs", broker.WebhookFailed); n != MostAtOnce {
			t.Errorf("%d failures after it, want %d", n, MostAtOnce)
		}
		w.mu.Lock()
		w.most["hangs"] = 0
		w.mu.Unlock()
		time.Sleep(time.Minute)
		w.mu.Lock()
		if n := w.most["hangs"]; n > 2 { // the end of one and the beginning of the next
			t.Errorf("%d calls at once at a target that fails", n)
		}
		w.mu.Unlock()
		if n := w.waiting("hangs"); n != each {
			t.Errorf("%d wait", n)
		}
		w.until(20*time.Minute, "told in full", func() bool { return w.count("hangs", broker.WebhookDelivered) == each })
		if left := w.left(); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

// Many ends go out as fast as the target takes them, and no more than some at
// once.
func TestManyEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := build(t, map[string]http.HandlerFunc{"p": func(http.ResponseWriter, *http.Request) { time.Sleep(50 * time.Millisecond) }})
		const jobs = 200
		var last time.Time
		for i := range jobs {
			w.end("p", fmt.Sprint("job-", i))
			last = time.Now()
		}
		w.until(time.Minute, "all are told", func() bool { return w.count("p", broker.WebhookDelivered) == jobs })
		ids := map[string]bool{}
		for _, c := range w.told("p") {
			ids[c.id] = true
		}
		if len(ids) != jobs || len(w.told("p")) != jobs {
			t.Errorf("%d messages in %d calls", len(ids), len(w.told("p")))
		}
		if w.most["p"] > MostAtOnce || time.Since(last) > 5*time.Second {
			t.Errorf("%d at once, the last told %v after its end", w.most["p"], time.Since(last))
		}
	})
}

// A store that is away is waited for, and what could not be put down is told
// again under the same id.
func TestStoreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w *town
		w = build(t, map[string]http.HandlerFunc{"p": func(http.ResponseWriter, *http.Request) {
			if len(w.told("p")) == 1 {
				w.redis.SetError("LOADING away")
				time.AfterFunc(30*time.Second, func() { w.redis.SetError("") })
			}
		}})
		w.end("p", "job")
		time.Sleep(31 * time.Second)
		w.until(time.Minute, "told", func() bool { return w.count("p", broker.WebhookDelivered) == 1 })
		calls := w.told("p")
		if len(calls) != 2 || calls[0].id != calls[1].id {
			t.Errorf("%+v", calls)
		}
	})
}
