package redisstore

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

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
	if v := h.rdb.HGet(bg, h.key("job", "j"), "v").Val(); v != fmt.Sprint(LayoutVersion) {
		t.Errorf("the record says layout %q", v)
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
		var e *LayoutError
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
	var e *LayoutError
	if _, err := h.Agree(bg, 1); !errors.As(err, &e) || e.Version != 0 || !strings.Contains(e.Error(), "not a version") {
		t.Errorf("%v", err)
	}
}

// What the error says of a store that is too old needs a program with a later
// layout than this one.
func TestLayoutErrorNamesBoth(t *testing.T) {
	e := &LayoutError{Version: LayoutVersion, OpenTo: LayoutVersion}
	for _, want := range []string{fmt.Sprintf("the store has layout %d;", LayoutVersion), fmt.Sprintf("this program has layout %d", LayoutVersion)} {
		if !strings.Contains(e.Error(), want) {
			t.Errorf("%q does not say %q", e, want)
		}
	}
	if layoutErrorOf(errors.New("LAYOUT 3 2")) != nil || layoutErrorOf(redis.Nil) != nil {
		t.Error("an error that is not the server's is taken for the layout's")
	}
}
