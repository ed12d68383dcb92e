package shard

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"leeway/broker"
	"leeway/broker/ledger"
	"leeway/broker/store"
	"leeway/slackgate"
)

func TestIDsNameTheirShard(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		id   string
		n    int
		want int
	}{
		{"0190", 1, 0},
		{"0190.1", 1, 0}, // of one shard every id is its own
		{"0190", 3, 0},
		{"0190.2", 3, 2},
		{"0190.3", 3, 0}, // none of ours
		{"0190.-1", 3, 0},
		{"0190.", 3, 0},
		{"", 3, 0},
		{"probe-1", 3, 0},
	} {
		if got := Of(tt.id, tt.n); got != tt.want {
			t.Errorf("Of(%q, %d) = %d", tt.id, tt.n, got)
		}
	}
	for n := 1; n <= 64; n++ {
		for shard := range n {
			if got := Of(Mark("0190", shard, n), n); got != shard {
				t.Errorf("shard %d of %d reads as %d", shard, n, got)
			}
		}
	}
	if got := Mark("0190", 0, 1); got != "0190" {
		t.Errorf("with one shard an id becomes %q", got)
	}
}

// The slots of a Cluster are told by its specification: CRC16 of 123456789 is
// 31C3.
func TestPrefixes(t *testing.T) {
	t.Parallel()
	if got := slot("123456789"); got != 0x31C3 {
		t.Fatalf("slot %x", got)
	}
	if got := Prefixes("leeway", 1); !slices.Equal(got, []string{"leeway"}) {
		t.Errorf("one shard: %v", got)
	}
	for _, n := range []int{2, 3, 6, 64} {
		got := Prefixes("leeway", n)
		seen := map[string]bool{"leeway": true}
		for i, p := range got {
			if seen[p] {
				t.Errorf("%q twice", p)
			}
			seen[p] = true
			if want := (slot(got[0]) + i*slots/n) % slots; slot(p) != want {
				t.Errorf("shard %d of %d is in slot %d, want %d", i, n, slot(p), want)
			}
		}
		if again := Prefixes("leeway", n); !slices.Equal(got, again) {
			t.Errorf("%v, then %v", got, again)
		}
	}
}

func TestHashSpreads(t *testing.T) {
	t.Parallel()
	const n, names = 4, 4000
	var count [n]int
	for i := range names {
		count[hash(fmt.Sprintf("producer-%d", i), n)]++
	}
	for i, c := range count {
		if c < names/n*8/10 || c > names/n*12/10 {
			t.Errorf("shard %d has %d of %d", i, c, names)
		}
	}
	// Keys are looked for where it leads, by programs to come too.
	if got := hash("key\x00nightly\x001", 64); got != 1 {
		t.Errorf("another hash: %d", got)
	}
}

type row struct{ ID string }

// played is a shard's ledger: ids of rows in their order, and which of them a
// filter wants.
type played struct {
	ids    []string
	wanted map[string]bool
	bad    map[string]bool // unreadable
}

// read reads a page as a store does: at most limit rows, and with looks at no
// more than a few rows, so that a page may be short and still have a next one.
func (l *played) read(cursor string, limit int) *broker.Page[row] {
	const looks = 5
	p := &broker.Page[row]{}
	n := 0
	for _, id := range l.ids {
		if cursor != "" && ledger.CompareIDs(id, cursor) <= 0 {
			continue
		}
		if len(p.Rows)+len(p.Unreadable) == limit || n == looks {
			return p
		}
		n++
		if p.Next = id; l.bad[id] {
			p.Unreadable = append(p.Unreadable, broker.Unreadable{ID: id})
		} else if l.wanted[id] {
			p.Rows = append(p.Rows, row{id})
		}
	}
	p.Next = ""
	return p
}

// Pages over all shards hold every row that the shards' pages do, once and in
// order, however the pages are cut.
func TestPagesMerge(t *testing.T) {
	t.Parallel()
	for range 300 {
		n, badRows := 1+rand.IntN(4), 0
		s, books, total := &Store{}, map[store.Shard]*played{}, 0
		for range n {
			l, at := &played{wanted: map[string]bool{}, bad: map[string]bool{}}, 1000
			for range rand.IntN(30) {
				at += 1 + rand.IntN(5)
				id := fmt.Sprintf("%d-%d", at, rand.IntN(3))
				if l.bad[id] = rand.IntN(5) == 0; l.bad[id] {
					badRows++
				} else if l.wanted[id] = rand.IntN(3) > 0; l.wanted[id] {
					total++
				}
				l.ids = append(l.ids, id)
			}
			one := &struct{ store.Shard }{}
			s.shards, books[one] = append(s.shards, one), l
		}
		var got []string
		for cursor, more := "", true; more; more = cursor != "" {
			p, err := pages(s, cursor, 1+rand.IntN(8), func(r *row) *string { return &r.ID },
				func(shard store.Shard, cursor string, limit int) (*broker.Page[row], error) {
					return books[shard].read(cursor, limit), nil
				})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range p.Rows {
				got = append(got, r.ID)
			}
			badRows -= len(p.Unreadable)
			if p.Next != "" && p.Next == cursor {
				t.Fatalf("the cursor stands still at %s", cursor)
			}
			cursor = p.Next
		}
		bare := func(id string) string { id, _, _ = strings.Cut(id, mark); return id }
		if !slices.IsSortedFunc(got, func(a, b string) int { return ledger.CompareIDs(bare(a), bare(b)) }) {
			t.Fatalf("not in order: %v", got)
		}
		slices.Sort(got)
		if len(slices.Compact(got)) != len(got) || len(got) != total {
			t.Fatalf("%d rows of %d: %v", len(got), total, got)
		}
		if badRows != 0 {
			t.Fatalf("%d unreadable rows were not told", badRows)
		}
	}
}

func TestCursorOfAnotherDeployment(t *testing.T) {
	t.Parallel()
	s := New(&struct{ store.Shard }{}, &struct{ store.Shard }{})
	for _, cursor := range []string{"1-0", "1-0_2-0_3-0"} {
		if _, err := s.split(cursor); err == nil {
			t.Errorf("%q was taken", cursor)
		}
	}
}

func TestTheBetterShard(t *testing.T) {
	t.Parallel()
	pool := func(waiting, running, capacity int, ageMS int64) slackgate.PoolState {
		return slackgate.PoolState{Waiting: waiting, Running: running, Capacity: capacity, QueueAgeMS: ageMS}
	}
	shard := func(sent int64, paid, free slackgate.PoolState) look {
		l := look{sent: sent}
		l.Known, l.Pools[slackgate.Paid], l.Pools[slackgate.Free] = true, paid, free
		return l
	}
	idle, none := pool(0, 0, 4, 0), pool(0, 0, 0, 0)
	unknown := shard(0, idle, idle)
	unknown.Known = false
	both, paid := [2]slackgate.Path{slackgate.Paid, slackgate.Free}, [2]slackgate.Path{slackgate.Paid}
	for _, tt := range []struct {
		what   string
		prefer [2]slackgate.Path
		x, y   look
		want   int
	}{
		{"both are idle", both, shard(0, idle, idle), shard(0, idle, idle), 0},
		{"fewer run", both, shard(0, pool(0, 1, 4, 0), idle), shard(0, pool(0, 2, 4, 0), idle), -1},
		{"what was sent counts", both, shard(2, pool(0, 1, 4, 0), idle), shard(0, pool(0, 2, 4, 0), idle), 1},
		{"jobs for each slot", paid, shard(0, pool(6, 2, 2, 0), idle), shard(0, pool(8, 4, 4, 0), idle), 1},
		{"a free slot of the pool that is preferred, before an empty other one", both, shard(0, pool(0, 3, 4, 0), pool(9, 4, 4, 0)), shard(0, pool(0, 4, 4, 0), idle), -1},
		{"without one, both pools together", both, shard(0, pool(1, 4, 4, 0), pool(9, 4, 4, 0)), shard(0, pool(3, 4, 4, 0), idle), 1},
		{"a pool that the job may not use", paid, shard(0, pool(1, 4, 4, 0), pool(9, 4, 4, 0)), shard(0, pool(3, 4, 4, 0), idle), -1},
		{"the older queue", paid, shard(0, pool(4, 4, 4, 900), idle), shard(0, pool(4, 4, 4, 300), idle), 1},
		{"no worker there", paid, shard(0, pool(50, 4, 4, 900), idle), shard(0, none, idle), -1},
		{"not seen lately", both, unknown, shard(0, pool(50, 4, 4, 900), pool(50, 4, 4, 900)), 1},
	} {
		if got := compare(tt.prefer, tt.x, tt.y); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.what, got, tt.want)
		}
		if got := compare(tt.prefer, tt.y, tt.x); got != -tt.want {
			t.Errorf("%s, the other way round: %d", tt.what, got)
		}
	}
}
