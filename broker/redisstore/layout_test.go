package redisstore

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/slackgate"
)

var layoutBehaviours = []behaviour{
	{"the first program lays the store out", firstLayout},
	{"a newer program raises the layout and never lowers who may work there", raisedLayout},
	{"a newer layout that is open is worked on", openLayout},
	{"a newer layout that is not open is left alone by every script", closedLayout},
	{"a layout that this program does not carry on is left alone", olderLayout},
	{"a layout that nobody wrote is left alone", unreadableLayout},
	{"jobs of layout 2 are carried to their end", layout2},
	{"a job whose promise cannot be read is set aside", brokenPromise},
}

// program runs a script as a program with another layout would.
func (h *harness) program(version, reads, openTo int, script string) error {
	return redis.NewScript(layoutHead(version, reads, openTo)+body(script)).Run(bg, h.rdb, h.keys).Err()
}

func (h *harness) layout() string {
	h.t.Helper()
	s, err := h.rdb.Get(bg, h.key("layout")).Result()
	h.must(err)
	return s
}

func firstLayout(t *testing.T, h *harness) {
	h.live(1, 1)
	want := fmt.Sprintf("%d %d", LayoutVersion, layoutOpenTo)
	if got := h.layout(); got != want {
		t.Errorf("after the first script the layout is %q, want %q", got, want)
	}
	if v, err := h.Agree(bg, 1); err != nil || v != LayoutVersion {
		t.Errorf("agreed on %d, %v", v, err)
	}
	h.put(slackgate.Paid, testJob("j", 60_000))
	if p := h.rdb.HGet(bg, h.key("job", "j"), "promise").Val(); !strings.HasPrefix(p, fmt.Sprintf(`{"v":%d,`, LayoutVersion)) {
		t.Errorf("the record says %q", p)
	}
}

func raisedLayout(t *testing.T, h *harness) {
	for _, step := range []struct {
		version, reads, openTo int
		want                   string
	}{
		{1, 1, 1, "1 1"},
		{2, 1, 1, "2 1"}, // beside programs of layout 1
		{1, 1, 1, "2 1"}, // which go on, and may be rolled back to
		{4, 2, 2, "4 2"}, // no more
		{5, 3, 1, "5 2"}, // what layout 4 wrote is still there
		{3, 1, 3, "5 2"},
	} {
		if err := h.program(step.version, step.reads, step.openTo, "agree"); err != nil {
			t.Errorf("%+v: %v", step, err)
		}
		if got := h.layout(); got != step.want {
			t.Errorf("after %+v the layout is %q", step, got)
		}
	}
}

func openLayout(t *testing.T, h *harness) {
	newer := fmt.Sprintf("%d %d", LayoutVersion+3, LayoutVersion)
	h.must(h.rdb.Set(bg, h.key("layout"), newer, 0).Err())
	c := h.started("j")
	if _, err := h.Finish(bg, c, usable("x")); err != nil {
		t.Error(err)
	}
	if v := h.view("j"); v.Outcome != broker.OutcomeUsable {
		t.Errorf("%+v", v)
	}
	if got := h.layout(); got != newer {
		t.Errorf("the layout is %q afterwards", got)
	}
	h.balanced()
}

// stored is everything that the store holds.
func (h *harness) stored() map[string]string {
	h.t.Helper()
	out := map[string]string{}
	keys, err := h.server().Keys(bg, h.prefix+":*").Result()
	h.must(err)
	for _, k := range keys {
		switch kind := h.rdb.Type(bg, k).Val(); kind {
		case "string":
			out[k] = h.rdb.Get(bg, k).Val()
		case "hash":
			out[k] = fmt.Sprint(h.rdb.HGetAll(bg, k).Val())
		case "zset":
			out[k] = fmt.Sprint(h.rdb.ZRangeWithScores(bg, k, 0, -1).Val())
		case "stream":
			out[k] = fmt.Sprint(h.rdb.XRange(bg, k, "-", "+").Val())
		default:
			h.t.Fatalf("%s is a %s", k, kind)
		}
	}
	return out
}

func closedLayout(t *testing.T, h *harness) {
	c := h.started("j")
	h.must(h.rdb.Set(bg, h.key("layout"), fmt.Sprintf("%d %d", LayoutVersion+2, LayoutVersion+1), 0).Err())
	before := h.stored()
	scripts, err := sources.ReadDir("script")
	h.must(err)
	refused := 0
	for _, f := range scripts {
		name := strings.TrimSuffix(f.Name(), ".lua")
		if name == "common" || name == "layout" {
			continue
		}
		refused++
		err := h.program(LayoutVersion, layoutReads, layoutOpenTo, name)
		var e *broker.LayoutError
		if !errors.As(unavailable(err), &e) || e.Version != LayoutVersion+2 || e.OpenTo != LayoutVersion+1 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if refused < 20 {
		t.Errorf("%d scripts", refused)
	}
	_, err = h.Finish(bg, c, usable("x"))
	if !errors.Is(err, broker.ErrUnavailable) {
		t.Errorf("finish: %v", err)
	}
	for _, want := range []string{
		fmt.Sprintf("layout %d", LayoutVersion+2), fmt.Sprintf("layout %d and newer", LayoutVersion+1),
		fmt.Sprintf("this program has layout %d", LayoutVersion),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	if _, err := h.Agree(bg, 1); err == nil {
		t.Error("agreed")
	}
	if after := h.stored(); !maps.Equal(after, before) {
		t.Errorf("the store was changed:\n%v\n%v", before, after)
	}
}

func olderLayout(t *testing.T, h *harness) {
	h.live(1, 1)
	err := h.program(LayoutVersion+2, LayoutVersion+1, LayoutVersion+1, "sweep")
	if e := layoutErrorOf(err); e == nil || e.Version != LayoutVersion {
		t.Errorf("a program that does not carry on layout %d: %v", LayoutVersion, err)
	}
	if got, want := h.layout(), fmt.Sprintf("%d %d", LayoutVersion, layoutOpenTo); got != want {
		t.Errorf("the layout is %q afterwards", got)
	}
	// The same, as this program would meet it.
	h.must(h.rdb.Set(bg, h.key("layout"), fmt.Sprintf("%d %d", layoutReads-1, layoutReads-1), 0).Err())
	if _, err := h.Agree(bg, 1); err == nil {
		t.Error("agreed with a layout that is too old")
	}
}

func unreadableLayout(t *testing.T, h *harness) {
	h.must(h.rdb.Set(bg, h.key("layout"), "what", 0).Err())
	var e *broker.LayoutError
	if _, err := h.Agree(bg, 1); !errors.As(err, &e) || e.Version != 0 || !strings.Contains(e.Error(), "not a version") {
		t.Errorf("%v", err)
	}
}

// asLayout2 makes a record what a program of layout 2 wrote.
func (h *harness) asLayout2(id string) {
	h.t.Helper()
	key := h.key("job", id)
	old := strings.NewReplacer(
		fmt.Sprintf(`"v":%d`, LayoutVersion), `"v":2`, "accepted_at_ms", "accepted_ms", "deadline_at_ms", "deadline_ms",
	).Replace(h.rdb.HGet(bg, key, "promise").Val())
	h.must(h.rdb.HSet(bg, key, "promise", old).Err())
	h.must(h.rdb.Set(bg, h.key("layout"), "2 2", 0).Err())
}

func layout2(t *testing.T, h *harness) {
	h.live(10, 10)
	for _, id := range []string{"a usable", "b handed back", "c lost", "d cancelled", "e moved", "f late"} {
		j := testJob(id, 60_000)
		j.Place = broker.BatchPlace{Batch: "b", Line: id}
		h.put(slackgate.Paid, j)
		was := h.view(id)
		h.asLayout2(id)
		if is := h.view(id); !reflect.DeepEqual(is, was) {
			t.Errorf("%s is read as %+v, not %+v", id, is, was)
		}
	}
	ended := func(id string, want broker.Outcome) {
		t.Helper()
		if v := h.view(id); v.Outcome != want {
			t.Errorf("%s: %+v", id, v)
		}
	}
	c := h.claim(slackgate.Paid)
	if lease, err := h.Renew(bg, c, time.Minute); lease != broker.LeaseHeld || err != nil || c.Class != "summary" || c.Admission.SlackMS == 0 {
		t.Errorf("%+v, %v, %v", c, lease, err)
	}
	_, err := h.Finish(bg, c, usable("x"))
	h.must(err)
	ended("a usable", broker.OutcomeUsable)
	h.must(h.Handback(bg, h.claim(slackgate.Paid)))
	c = h.claim(slackgate.Paid)
	_, err = h.Finish(bg, c, usable("y"))
	h.must(err)
	ended("b handed back", broker.OutcomeUsable)
	lost := h.claim(slackgate.Paid)
	h.must(h.rdb.ZAdd(bg, h.key("running", "paid"), redis.Z{Score: 1, Member: lost.ID}).Err())
	h.lastSweep(500 * time.Millisecond)
	if s := h.sweep(); s.Reoffered != 1 {
		t.Errorf("swept %+v", s)
	}
	if got, err := h.Cancel(bg, "d cancelled"); got.Result != broker.CancelWaiting || err != nil {
		t.Errorf("cancel: %v, %v", got, err)
	}
	o := offerTo(slackgate.Free, testJob("e moved", 50_000))
	o.Again = &broker.Again{From: slackgate.Paid}
	if got, err := h.Admit(bg, openPools(), []broker.Offer{o}); err != nil || got.Jobs[0].Path != slackgate.Free {
		t.Errorf("moved: %+v, %v", got, err)
	}
	if v := h.view("e moved"); v.Path != slackgate.Free || v.State != broker.StateWaiting {
		t.Errorf("%+v", v)
	}
	h.checked()
	for _, id := range []string{"c lost", "e moved", "f late"} {
		key := h.key("job", id)
		overdue := regexp.MustCompile(`"deadline_ms":\d+`).ReplaceAllString(h.rdb.HGet(bg, key, "promise").Val(), `"deadline_ms":1`)
		h.must(h.rdb.HSet(bg, key, "promise", overdue).Err())
	}
	for _, pool := range []string{"paid", "free"} {
		for _, m := range h.rdb.ZRange(bg, h.key("waiting", pool), 0, -1).Val() {
			h.must(h.rdb.ZAdd(bg, h.key("waiting", pool), redis.Z{Score: 1, Member: m}).Err())
		}
	}
	if s := h.sweep(); s.Expired != 3 {
		t.Errorf("swept %+v", s)
	}
	ended("f late", broker.OutcomeExpired)
	if rows := h.misses(); len(rows) != 3 || rows[0].Producer != "p" || rows[0].SlackMS == 0 {
		t.Errorf("misses %+v", rows)
	}
	h.checked()
	if got, want := h.layout(), fmt.Sprintf("%d %d", LayoutVersion, layoutOpenTo); got != want {
		t.Errorf("the layout is %q afterwards", got)
	}
}

func brokenPromise(t *testing.T, h *harness) {
	h.live(10, 10)
	whole := fmt.Sprintf(`{"v":%d,"accepted_at_ms":1,"deadline_at_ms":2,"reserve_ms":3,"seq":4,"class":"summary"}`, LayoutVersion)
	broken := []string{"", "{", "null", "[]", `"x"`, "{}", strings.Repeat("[", 2000)}
	for _, part := range []string{"accepted_at_ms", "deadline_at_ms", "reserve_ms", "seq", "class"} {
		broken = append(broken, strings.Replace(whole, part, "x", 1))
	}
	for i, p := range broken {
		id := fmt.Sprintf("j%02d", i)
		h.put(slackgate.Paid, testJob(id, 60_000))
		h.must(h.rdb.HSet(bg, h.key("job", id), "promise", p).Err())
		c, met, err := h.Claim(bg, slackgate.Paid, 10, time.Minute)
		if c != nil || err != nil || len(met.Lost) != 1 || met.Lost[0].ID != id {
			t.Errorf("%q is claimed: %+v, %+v, %v", p, c, met, err)
		}
	}
	h.checked()
}

// A promise is one field of a record, and a program that has lost its way may
// have left anything there.
func TestReadPromise(t *testing.T) {
	for _, raw := range []string{"", "{", `{"accepted_at_ms":"x"}`, `{"deadline_ms":[]}`, `{"admission":1}`} {
		if p, err := readPromise(raw); err == nil {
			t.Errorf("%q was read as %+v", raw, p)
		}
	}
}

// What the error says of a store that is too old needs a program with a later
// layout than this one.
func TestLayoutErrorNamesBoth(t *testing.T) {
	e := &broker.LayoutError{Version: LayoutVersion, OpenTo: LayoutVersion, Program: LayoutVersion, Reads: layoutReads}
	for _, want := range []string{fmt.Sprintf("the store has layout %d;", LayoutVersion), fmt.Sprintf("this program has layout %d", LayoutVersion)} {
		if !strings.Contains(e.Error(), want) {
			t.Errorf("%q does not say %q", e, want)
		}
	}
	if layoutErrorOf(errors.New("LAYOUT 3 2")) != nil || layoutErrorOf(redis.Nil) != nil {
		t.Error("an error that is not the server's is taken for the layout's")
	}
}
