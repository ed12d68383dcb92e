//go:build server

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/faultpoint"
	"leeway/broker/webhook"
	"leeway/rehearsal/proctest"
)

const hookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// message is what a webhook's target was sent.
type message struct {
	header http.Header
	body   []byte
}

// inbox is a webhook's target that keeps what it is sent.
type inbox struct {
	*httptest.Server

	mu   sync.Mutex
	kept []message
}

func newInbox(t *testing.T) *inbox {
	t.Helper()
	in := &inbox{}
	in.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		in.mu.Lock()
		defer in.mu.Unlock()
		in.kept = append(in.kept, message{r.Header.Clone(), body})
	}))
	t.Cleanup(in.Close)
	return in
}

// messages waits for n of them.
func (in *inbox) messages(t *testing.T, n int) []message {
	t.Helper()
	proctest.Eventually(t, 40*time.Second, fmt.Sprintf("%d messages", n), func() error {
		in.mu.Lock()
		defer in.mu.Unlock()
		if len(in.kept) < n {
			return fmt.Errorf("%d came", len(in.kept))
		}
		return nil
	})
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.kept
}

// An API that dies after a target has taken a message, and before that is put
// down, leaves it to the next one: the message comes again under its id, and
// nothing is left behind. The job's end itself is told although the API that
// took it was killed.
func toldTwice(t *testing.T, s settings) {
	in := newInbox(t)
	s.More = fmt.Sprintf("producers: {nightly: {webhook: {url: %q, secret_env: HOOK_SECRET, allow_private: true}}}", in.URL+"/hook")
	d := deploy(t, s)
	d.startWorker()
	d.faulty, d.env = "faultpoints", []string{"HOOK_SECRET=" + hookSecret, faultEnv + "=" + faultpoint.Told}
	victim := d.startAPI()
	d.faulty, d.env = "", d.env[:1]
	d.ready()
	v, err := d.client.Submit(context.Background(), &client.Job{Class: "paid-only", Text: text, Producer: "nightly"})
	if err != nil {
		t.Fatal(err)
	}
	in.messages(t, 1)
	died(t, victim, faultpoint.Told)
	d.startAPI()
	d.ready()
	told := in.messages(t, 2)
	verify, err := standardwebhooks.NewWebhook(hookSecret)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range told {
		if err := verify.Verify(m.body, m.header); err != nil {
			t.Errorf("%v: %s", err, m.body)
		}
		if id := m.header.Get("webhook-id"); id != webhook.MessageID(v.JobID) || string(m.body) != string(told[0].body) ||
			!strings.Contains(string(m.body), `"outcome":"`+string(broker.OutcomeUsable)) {
			t.Errorf("%s: %s", id, m.body)
		}
	}
	opts, err := redis.ParseURL(d.redis.URL())
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	proctest.Eventually(t, 20*time.Second, "nothing is left behind", func() error {
		keys, err := rdb.Keys(context.Background(), "*:webhook*").Result()
		if len(keys) > 0 {
			err = errors.Join(err, fmt.Errorf("%v", keys))
		}
		return err
	})
	for p, pg := range d.metrics() {
		if strings.HasSuffix(p.name, "api") {
			if n := pg.get(`webhook_deliveries_total{producer="nightly",result="delivered"}`); n != 1 {
				t.Errorf("%d deliveries are counted", n)
			}
		}
	}
	if r := call(t, http.MethodGet, d.client.Base+"/v1/ledgers/check", "", ""); !strings.Contains(string(r.body), `"balanced":true`) {
		t.Errorf("the books: %s", r.body)
	}
}
