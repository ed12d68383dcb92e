//go:build server

package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"leeway/broker/client"
	"leeway/broker/store/storetest"
	"leeway/broker/wire"
	"leeway/rehearsal/proctest"
	"leeway/slackgate"
)

// nextVersion are the changes that make the source the next version: one
// layout further and open to this one, with something new in records, rows,
// messages and tickets. Each text is in its file once.
var nextVersion = map[string]map[string]string{
	"broker/redisstore/layout.go": {
		"LayoutVersion = 3\n": "LayoutVersion = 4\n",
	},
	"broker/redisstore/script/admit.lua": {
		"'spec', o.spec,": "'spec', o.spec, 'next', 'field',",
	},
	"broker/redisstore/script/common.lua": {
		"{\n      'job_id', id, 'path', pool, 'class', r.class,": "{\n      'next', 'field', 'job_id', id, 'path', pool, 'class', r.class,",
	},
	"broker/broker.go": {
		"type Spec struct {\n": "type Spec struct {\n\tNext [1]int `json:\"next\"`\n",
	},
	"broker/row.go": {
		"type SpendRow struct {\n": "type SpendRow struct {\n\tNext [1]int `json:\"next\"`\n",
	},
	"broker/job.go": {
		"type Piece struct {\n": "type Piece struct {\n\tNext [1]int `json:\"next\"`\n",
	},
	"broker/backend.go": {
		"type BackendState struct {\n": "type BackendState struct {\n\tNext [1]int `json:\"next\"`\n",
	},
	"broker/ticket/ticket.go": {
		"asynq.NewTask(Type, nil)": "asynq.NewTask(Type, []byte(`{\"next\":1}`))",
	},
}

// buildNext builds the binaries of the next version into the folder next: the
// source as it is, with the changed files laid over it.
func buildNext(t *testing.T) {
	t.Helper()
	root, err := proctest.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var overlay struct{ Replace map[string]string }
	overlay.Replace = map[string]string{}
	for file, edits := range nextVersion {
		raw, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		text := string(raw)
		for was, is := range edits {
			if n := strings.Count(text, was); n != 1 {
				t.Fatalf("%s has %q %d times: the next version is to be made otherwise", file, was, n)
			}
			text = strings.Replace(text, was, is, 1)
		}
		changed := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(root, file)] = changed
	}
	raw, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	// Without the race detector, as the product is built: most of it is built already.
	if _, err := proctest.Build(filepath.Join(bin, "next"), []string{"-overlay", list}, "api", "worker"); err != nil {
		t.Fatal(err)
	}
}

const layoutKey = "{leeway}:layout"

// redisClient looks into the deployment's Redis.
func (d *stack) redisClient() *redis.Client {
	d.t.Helper()
	o, err := redis.ParseURL(d.redis.URL())
	if err != nil {
		d.t.Fatal(err)
	}
	rdb := redis.NewClient(o)
	d.t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// upgrade is a deployment that is upgraded under load. Producers go from one
// API to the next as a load balancer sends them.
type upgrade struct {
	*stack

	rdb     *redis.Client
	written map[string]string // the layout of each job's record

	mu    sync.Mutex // guards doors
	doors []*client.Client
}

// startDoor and startHand start a process of a version: "" for this one, or "next".
func (u *upgrade) startDoor(version string) (p *process, door *client.Client) {
	u.t.Helper()
	u.faulty = version
	p = u.startAPI()
	u.ready()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.doors = append(u.doors, u.client)
	return p, u.client
}

func (u *upgrade) startHand(version string) *process {
	u.t.Helper()
	u.faulty = version
	return u.startWorker("LEEWAY_PAID_SLOTS=4", "LEEWAY_FREE_SLOTS=1")
}

// closeDoor takes an API out of the load balancer and stops it.
func (u *upgrade) closeDoor(p *process, door *client.Client) {
	u.t.Helper()
	u.mu.Lock()
	u.doors = slices.DeleteFunc(u.doors, func(c *client.Client) bool { return c == door })
	u.client = u.doors[0]
	u.mu.Unlock()
	p.stop()
}

func (u *upgrade) door(n int) *client.Client {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.doors[n%len(u.doors)]
}

// load submits 12 jobs a second until stopped. A connection that an API's end
// has cut is tried again with the same key.
func (u *upgrade) load(stop <-chan struct{}) {
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(time.Second / 12)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		wg.Go(func() {
			s := &submission{job: client.Job{Class: []string{"paid-only", "summary"}[i%2], Text: text, IdempotencyKey: fmt.Sprintf("upgrade-%d", i)}}
			defer u.book.add(s)
			for try := range 50 {
				v, err := u.door(i+try).Submit(context.Background(), &s.job)
				var p *wire.Problem
				switch {
				case err == nil:
					s.verdict, s.err = v, nil
					return
				case errors.As(err, &p):
					s.refusal, s.err = p, nil
					return
				}
				s.err = err
			}
		})
	}
}

// layoutOf is the layout of the program that wrote a promise.
func layoutOf(promise string) string {
	layout, _, _ := strings.Cut(strings.TrimPrefix(promise, `{"v":`), ",")
	return layout
}

// crossed counts the ended jobs by the version that admitted them and the
// version that ended them.
func (u *upgrade) crossed() map[string]int {
	u.t.Helper()
	out := map[string]int{}
	for _, p := range u.workers {
		for _, l := range p.lines() {
			if l["msg"] != "job" {
				continue
			}
			id, _ := l["job_id"].(string)
			if u.written[id] == "" {
				u.written[id] = layoutOf(u.rdb.HGet(context.Background(), "{leeway}:job:"+id, "promise").Val())
			}
			out[u.written[id]+" ended by "+filepath.Dir(p.name)]++
		}
	}
	return out
}

// until waits until each kind of crossing has been seen so many times more.
func (u *upgrade) until(n int, kinds ...string) {
	u.t.Helper()
	before := u.crossed()
	proctest.Eventually(u.t, 40*time.Second, fmt.Sprintf("jobs %v", kinds), func() error {
		now := u.crossed()
		for _, k := range kinds {
			if now[k]-before[k] < n {
				return fmt.Errorf("%s: %d, before %d", k, now[k], before[k])
			}
		}
		return nil
	})
}

// TestRollingUpgrade: this version's API and worker beside the next one's, then
// the next alone, then back, under load all the time. No job is lost, and the
// books balance.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	buildNext(t)
	s := quick()
	s.PaidSlots, s.PaidMS, s.PaidP95 = 8, 300, 900
	s.DeadlineMS, s.ReserveMS = 20_000, 500
	u := &upgrade{stack: deploy(t, s), written: map[string]string{}}
	u.rdb = u.redisClient()
	const (
		oldByOld, oldByNext   = "3 ended by .", "3 ended by next"
		nextByOld, nextByNext = "4 ended by .", "4 ended by next"
	)
	oldWorker := u.startHand("")
	oldAPI, oldDoor := u.startDoor("")
	stop, loaded := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(loaded)
		u.load(stop)
	}()
	u.until(4, oldByOld)
	if got := u.rdb.Get(context.Background(), layoutKey).Val(); got != "3 3" {
		t.Errorf("layout %q before the upgrade", got)
	}

	nextAPI, nextDoor := u.startDoor("next")
	nextWorker := u.startHand("next")
	u.until(4, oldByOld, oldByNext, nextByOld, nextByNext)
	if got := u.rdb.Get(context.Background(), layoutKey).Val(); got != "4 3" {
		t.Errorf("layout %q with both", got)
	}

	oldWorker.stop()
	u.closeDoor(oldAPI, oldDoor)
	u.until(4, nextByNext)

	// Back again, and not gently: what the next version had in flight is taken
	// over by this one.
	_, _ = u.startDoor("")
	back := u.startHand("")
	if !strings.Contains(back.Out.String(), `"the store has a newer layout that is open to this program","layout":4`) {
		t.Error("the old version does not say that a newer one was here")
	}
	nextWorker.kill()
	u.until(4, nextByOld)
	u.closeDoor(nextAPI, nextDoor)
	u.until(4, oldByOld)

	close(stop)
	<-loaded
	u.settled(40 * time.Second)
	t.Logf("jobs by the layout of their record: %v; answers %v, outcomes %v", u.crossed(), u.book.reasons(), u.outcomes())
	for _, s := range u.book.all() {
		if s.err != nil || s.reason() == slackgate.ReasonGateUnavailable {
			t.Errorf("a submission had no verdict: %v %+v", s.err, s.refusal)
		}
	}
	// What this version does not know stays.
	for _, s := range u.book.admitted() {
		r := u.rdb.HGetAll(context.Background(), "{leeway}:job:"+s.verdict.JobID).Val()
		if layout := layoutOf(r["promise"]); (layout == "4") != (r["next"] == "field") {
			t.Errorf("job %s of layout %s has %q in the next version's field", s.verdict.JobID, layout, r["next"])
		}
	}
	u.auditBooks(rules{uncalled: lost})
	byID, _ := u.jobLines()
	for id, lines := range byID {
		if len(lines) > 1 {
			t.Errorf("job %s has %d log lines", id, len(lines))
		}
	}
	u.balanced()
}

// TestClosedLayout: a store whose layout is closed to this version. Running
// processes leave it alone from then on and say why; starting ones do not start.
func TestClosedLayout(t *testing.T) {
	t.Parallel()
	d := run(t, quick())
	d.api.outage, d.workers[0].outage = true, true
	d.admit(client.Job{Class: "paid-only", Text: text})
	d.settled(20 * time.Second)
	closed := fmt.Sprintf("%d %d", storetest.LayoutVersion+2, storetest.LayoutVersion+1)
	rdb := d.redisClient()
	lay := func(out string) {
		t.Helper()
		if err := rdb.Set(context.Background(), layoutKey, out, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	lay(closed)
	names := fmt.Sprintf("layout %d, which is open to programs of layout %d and newer; this program has layout %d",
		storetest.LayoutVersion+2, storetest.LayoutVersion+1, storetest.LayoutVersion)
	s := d.submit(client.Job{Text: text})
	if s.refusal == nil || s.refusal.Status != http.StatusServiceUnavailable || s.reason() != slackgate.ReasonGateUnavailable {
		t.Errorf("a submission: %+v %+v %v", s.verdict, s.refusal, s.err)
	}
	if r := call(t, http.MethodGet, d.client.Base+"/readyz", "", ""); r.status != http.StatusServiceUnavailable || !strings.Contains(string(r.body), names) {
		t.Errorf("/readyz: %d %s", r.status, r.body)
	}
	if r := call(t, http.MethodGet, d.client.Base+"/livez", "", ""); r.status != http.StatusOK {
		t.Errorf("/livez: %d %s", r.status, r.body)
	}
	for _, name := range []string{"api", "worker"} {
		out, err := exec.Command(filepath.Join(bin, name), "--config", d.file).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), name+": the store has "+names) {
			t.Errorf("%s started: %v %s", name, err, out)
		}
	}
	if got := rdb.Get(context.Background(), layoutKey).Val(); got != closed {
		t.Errorf("the layout is %q afterwards", got)
	}
	lay(fmt.Sprintf("%d %d", storetest.LayoutVersion, storetest.LayoutVersion))
	d.ready()
	d.admit(client.Job{Class: "paid-only", Text: text})
	d.settled(20 * time.Second)
	d.book.subs = slices.DeleteFunc(d.book.subs, func(s *submission) bool { return !s.admitted() })
	d.audit(rules{unanswered: 1})
}
