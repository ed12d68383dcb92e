package app_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/broker/webhook"
	"leeway/rehearsal/pipenet"
	"leeway/rehearsal/stage"
	"leeway/slackgate"
)

// receiver is a webhook target over in-memory connections. It answers with one
// status and hands on the ids that it is told.
func receiver(t *testing.T, status int) (l *pipenet.Listener, ids <-chan string) {
	t.Helper()
	l = pipenet.Listen()
	told := make(chan string, 100)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		told <- r.Header.Get("webhook-id")
		w.WriteHeader(status)
	})}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		must(t, srv.Close())
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return l, told
}

// A webhook's target changes with a reload, and one without its secret changes
// nothing. What waited for the old target is told to the new one.
func TestWebhookReload(t *testing.T) {
	t.Setenv("HOOK_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	synctest.Test(t, func(t *testing.T) {
		before, failed := receiver(t, http.StatusInternalServerError)
		after, told := receiver(t, http.StatusNoContent)
		hosts := map[string]*pipenet.Listener{"before:443": before, "after:443": after}
		dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
			return hosts[addr].DialContext(ctx, network, addr)
		}
		to := func(host, secret string) config.Producers {
			return config.Producers{"nightly": {Webhook: &config.Webhook{URL: "https://" + host + "/hook", SecretEnv: secret}}}
		}
		cfg := config.Default()
		cfg.Pools.Free.Limit = 0
		cfg.Pools.Paid = config.Pool{Limit: 2, FirstByteP95MS: 500}
		cfg.Producers = to("before", "HOOK_SECRET")
		w := startWith(t, cfg, map[slackgate.Path][]lives{slackgate.Paid: {{profile: "fixed:100ms", tail: "0", slots: 2}}},
			stage.Options{WebhookTransport: &http.Transport{DialContext: dial, DialTLSContext: dial}})

		one := w.submit(&client.Job{Text: document, Producer: "nightly"})
		w.wait(w.submit(&client.Job{Text: document, Producer: "somebody else"}).JobID)
		w.wait(one.JobID)
		if id := <-failed; id != webhook.MessageID(one.JobID) {
			t.Errorf("told %s of %s", id, one.JobID)
		}
		next := *cfg
		next.Producers = to("after", "NO_SUCH_SECRET")
		must(t, next.Complete())
		if err := w.api.Reload(&next); err == nil || !strings.Contains(err.Error(), "producers.nightly.webhook.secret_env") {
			t.Errorf("without its secret: %v", err)
		}
		next.Producers = to("after", "HOOK_SECRET")
		must(t, next.Complete())
		must(t, w.api.Reload(&next))
		if id := <-told; id != webhook.MessageID(one.JobID) {
			t.Errorf("told %s of %s", id, one.JobID)
		}
		time.Sleep(time.Second)
		if n := len(failed) + len(told); n != 0 {
			t.Errorf("%d more messages", n)
		}
		if n, err := w.api.Store().WebhooksWaiting(t.Context(), []string{"nightly"}); n["nightly"] != 0 || err != nil {
			t.Errorf("%v wait, %v", n, err)
		}
	})
}
