package redisstore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/slackgate"
)

var webhookBehaviours = []behaviour{
	{"an end is put down for its webhook and told once", toldOnce},
	{"every way a job ends is told", everyEndTold},
	{"a job without a webhook leaves nothing", nothingToTell},
	{"an attempt that another has followed changes nothing", toldTwice},
	{"a webhook's day ends", toldNoMore},
	{"what waits for a webhook is bounded", toldBounded},
}

// hooked is a job of a producer that has a webhook.
func hooked(id string) *broker.Submission {
	j := testJob(id, 60_000)
	j.Webhook = true
	return j
}

func (h *harness) end(id string) {
	h.t.Helper()
	h.live(10, 10)
	h.put(slackgate.Paid, hooked(id))
	_, err := h.Finish(bg, h.claim(slackgate.Paid), usable("the answer"))
	h.must(err)
}

func (h *harness) due(most int) []broker.Untold {
	h.t.Helper()
	ends, err := h.TakeWebhooks(bg, time.Minute, broker.WebhookDue{Producer: "p", Most: most})
	h.must(err)
	return ends
}

func (h *harness) settled(u *broker.Untold, r broker.WebhookResult, next time.Duration, want broker.WebhookResult) {
	h.t.Helper()
	if got, err := h.SettleWebhook(bg, u, r, next); got != want || err != nil {
		h.t.Errorf("%s of attempt %d was put down as %q, %v; want %q", r, u.Attempt, got, err, want)
	}
}

// dueNow moves the next attempt at an end to now.
func (h *harness) dueNow(id string) {
	h.t.Helper()
	h.must(h.rdb.ZIncrBy(bg, h.key("webhooks", "p"), -float64(48*time.Hour.Milliseconds()), id).Err())
}

// counted holds the sums of what became of webhooks against what is wanted,
// as "delivered failed given_up dropped", and what waits.
func (h *harness) counted(want string, waiting int64) {
	h.t.Helper()
	tot := h.totals()
	var got []string
	for _, r := range broker.WebhookResults {
		got = append(got, fmt.Sprint(tot["webhook:"+string(r)+":p"]))
	}
	if g := strings.Join(got, " "); g != want {
		h.t.Errorf("delivered, failed, given up, dropped: %s, want %s", g, want)
	}
	n, err := h.WebhooksWaiting(bg, []string{"p", "nobody"})
	h.must(err)
	if n["p"] != waiting || n["nobody"] != 0 {
		h.t.Errorf("waiting %v, want %d", n, waiting)
	}
}

// left are the keys of webhooks that are left.
func (h *harness) left() []string {
	h.t.Helper()
	keys, err := h.rdb.Keys(bg, h.prefix+":webhook*").Result()
	h.must(err)
	return keys
}

func toldOnce(t *testing.T, h *harness) {
	h.end("j")
	ends := h.due(5)
	if len(ends) != 1 {
		t.Fatalf("%d ends are due", len(ends))
	}
	u := &ends[0]
	v := h.view("j")
	if u.Producer != "p" || u.JobID != "j" || u.Attempt != 1 || u.Err != nil || u.Job.Outcome != broker.OutcomeUsable ||
		u.Job.Answer != "" || u.Job.Metadata["k"] != "j" || u.Job.ElapsedMS != v.ElapsedMS || u.Job.ResultExpiresAtMS != v.ResultExpiresAtMS {
		t.Errorf("%+v of %+v", u, u.Job)
	}
	if again := h.another().due(5); len(again) != 0 {
		t.Errorf("another process got %+v meanwhile", again)
	}
	between(t, "the lease", h.score("j", "webhooks", "p")-h.NowMS(), 50_000, 61_000)
	h.settled(u, broker.WebhookFailed, 10*time.Minute, broker.WebhookFailed)
	between(t, "the next attempt", h.score("j", "webhooks", "p")-h.NowMS(), 590_000, 601_000)
	for _, key := range h.left() {
		if d, err := h.rdb.PTTL(bg, key).Result(); d <= 0 || err != nil {
			t.Errorf("%s lives for ever: %v, %v", key, d, err)
		}
	}
	h.dueNow("j")
	ends = h.due(5)
	if len(ends) != 1 || ends[0].Attempt != 2 {
		t.Fatalf("%+v", ends)
	}
	h.settled(&ends[0], broker.WebhookDelivered, 0, broker.WebhookDelivered)
	h.settled(&ends[0], broker.WebhookDelivered, 0, "")
	h.counted("1 1 0 0", 0)
	if keys := h.left(); len(keys) != 0 {
		t.Errorf("left behind: %v", keys)
	}
	h.balanced()
}

func everyEndTold(t *testing.T, h *harness) {
	h.live(10, 10)
	// Taken back while it waits.
	h.put(slackgate.Paid, hooked("waiting"))
	_, err := h.Cancel(bg, "waiting")
	h.must(err)
	// Taken back while it runs, and handed back.
	h.put(slackgate.Paid, hooked("running"))
	c := h.claim(slackgate.Paid)
	_, err = h.Cancel(bg, "running")
	h.must(err)
	h.must(h.Handback(bg, c))
	// Expired while it waits.
	h.put(slackgate.Paid, hooked("expired"))
	h.advance(70 * time.Second)
	h.live(10, 10)
	_, err = h.Sweep(bg)
	h.must(err)
	// Its text is gone.
	h.put(slackgate.Paid, hooked("lost"))
	h.must(h.rdb.Del(bg, h.key("text", "lost")).Err())
	if c, _, err := h.Claim(bg, slackgate.Paid, 1000, time.Minute); c != nil || err != nil {
		t.Errorf("claimed %+v, %v", c, err)
	}
	h.end("usable")
	got := map[string]broker.Outcome{}
	for _, u := range h.due(100) {
		got[u.JobID] = u.Job.Outcome
	}
	for id, want := range map[string]broker.Outcome{
		"waiting": broker.OutcomeCancelled, "running": broker.OutcomeCancelled, "expired": broker.OutcomeExpired,
		"lost": broker.OutcomeFailed, "usable": broker.OutcomeUsable,
	} {
		if got[id] != want {
			t.Errorf("%s was told as %q, want %s", id, got[id], want)
		}
	}
	if len(got) != 5 {
		t.Errorf("told %v", got)
	}
	h.balanced()
}

func nothingToTell(t *testing.T, h *harness) {
	j := testJob("j", 60_000)
	j.Metadata = map[string]string{"webhook": "true", `"webhook":true`: `"webhook":true,"webhook":true`}
	h.live(10, 10)
	h.put(slackgate.Paid, j)
	_, err := h.Finish(bg, h.claim(slackgate.Paid), usable("x"))
	h.must(err)
	h.counted("0 0 0 0", 0)
	if keys := h.left(); len(keys) != 0 {
		t.Errorf("put down: %v", keys)
	}
}

func toldTwice(t *testing.T, h *harness) {
	h.end("j")
	first := h.due(1)[0]
	h.dueNow("j") // its lease lapses
	second := h.due(1)[0]
	if second.Attempt != 2 {
		t.Fatalf("%+v", second)
	}
	before := h.score("j", "webhooks", "p")
	h.settled(&first, broker.WebhookFailed, time.Hour, "")
	h.settled(&first, broker.WebhookGivenUp, 0, "")
	if after := h.score("j", "webhooks", "p"); after != before {
		t.Errorf("the lease moved by %d", after-before)
	}
	h.settled(&first, broker.WebhookDelivered, 0, broker.WebhookDelivered) // it was taken, whoever told it
	h.settled(&second, broker.WebhookFailed, time.Hour, "")
	h.counted("1 0 0 0", 0)
}

func toldNoMore(t *testing.T, h *harness) {
	h.end("j")
	u := h.due(1)[0]
	h.must(h.rdb.PExpire(bg, h.key("webhook", "j"), 10*time.Minute).Err())
	h.settled(&u, broker.WebhookFailed, 11*time.Minute, broker.WebhookGivenUp)
	h.counted("0 0 1 0", 0)
	// One whose time ran out before anybody looked.
	h.end("k")
	h.must(h.rdb.Del(bg, h.key("webhook", "k")).Err())
	if ends := h.due(5); len(ends) != 0 {
		t.Errorf("%+v", ends)
	}
	h.counted("0 0 2 0", 0)
	// One that the target wants to hear no more of.
	h.end("l")
	u = h.due(1)[0]
	h.settled(&u, broker.WebhookGivenUp, 0, broker.WebhookGivenUp)
	h.counted("0 0 3 0", 0)
	if keys := h.left(); len(keys) != 0 {
		t.Errorf("left behind: %v", keys)
	}
}

func toldBounded(t *testing.T, h *harness) {
	const most = 50_000 // as the scripts have it
	pipe := h.rdb.Pipeline()
	for i := range most - 1 {
		pipe.ZAdd(bg, h.key("webhooks", "p"), redis.Z{Score: 4e15, Member: fmt.Sprint("x", i)})
	}
	_, err := pipe.Exec(bg)
	h.must(err)
	h.end("fits")
	h.end("dropped")
	h.counted("0 0 0 1", most)
	if ends := h.due(5); len(ends) != 1 || ends[0].JobID != "fits" {
		t.Errorf("%+v", ends)
	}
	if n, err := h.rdb.Exists(bg, h.key("webhook", "dropped")).Result(); n != 0 || err != nil {
		t.Errorf("the dropped end is on record: %d, %v", n, err)
	}
	h.balanced()
}
