package redisstore

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"leeway/broker"
	"leeway/slackgate"
)

// The store's clock steps back behind a waiting job's admission: the job keeps
// the time it came with, no more, and its wait is nothing, not less.
func TestClockStepsBack(t *testing.T) {
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	at := time.UnixMilli(1_700_000_000_000)
	m.SetTime(at)
	h := newHarness(t, "redis://"+m.Addr()+"/0")
	h.live(2, 0)
	for _, id := range []string{"claimed", "cancelled"} {
		h.put(slackgate.Paid, &broker.Submission{Spec: broker.Spec{ID: id, Class: "summary", Text: "x", Prefer: [2]slackgate.Path{slackgate.Paid}}, DeadlineInMS: 60_000, ReserveMS: 2000})
	}
	m.SetTime(at.Add(-5 * time.Minute))
	if st := h.state(); st.Pools[slackgate.Paid].QueueAgeMS != 0 {
		t.Errorf("queue age %d ms", st.Pools[slackgate.Paid].QueueAgeMS)
	}
	c := h.claim(slackgate.Paid)
	if left := c.DeadlineAtMS - c.NowMS; left != 60_000 || c.QueueWaitMS() != 0 || c.SlackMS() != 58_000 {
		t.Errorf("%d ms left, slack %d, waited %d: %+v", left, c.SlackMS(), c.QueueWaitMS(), c)
	}
	if o, err := h.finish(c, usable("a")); o != broker.OutcomeUsable || err != nil {
		t.Errorf("%s, %v", o, err)
	}
	if _, err := h.Cancel(bg, "cancelled"); err != nil {
		t.Error(err)
	}
	for _, id := range []string{"claimed", "cancelled"} {
		if v := h.view(id); v.State != broker.StateDone || v.QueueWaitMS != 0 {
			t.Errorf("%+v", v)
		}
	}
	h.balanced()
}
