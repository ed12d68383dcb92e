package workers

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/store"
)

// pieces is a store that takes its time for each piece, and does not take some.
type pieces struct {
	store.Worker
	takes  time.Duration
	refuse int // counts from 1; 0 refuses none
	got    []broker.Piece
	at     []time.Duration // since began
	began  time.Time
	calls  int
}

func (p *pieces) Relay(_ context.Context, _ string, piece *broker.Piece) error {
	p.calls++
	at := time.Since(p.began)
	time.Sleep(p.takes)
	if p.calls == p.refuse {
		return errors.New("away")
	}
	p.got, p.at = append(p.got, *piece), append(p.at, at)
	return nil
}

// The first text goes at once, the rest in as many messages as the answer has
// fifths of a second, and nothing is left behind at its end.
func TestRelay(t *testing.T) {
	for _, tt := range []struct {
		name   string
		chunks int
		every  time.Duration
		store  pieces
		want   int // messages at most
	}{
		{"500 chunks in 5 s", 500, 10 * time.Millisecond, pieces{}, 26},
		{"500 chunks at once", 500, 0, pieces{}, 2},
		{"fewer chunks than fifths of a second", 5, time.Second, pieces{}, 5},
		{"Redis takes a second for each", 500, 10 * time.Millisecond, pieces{takes: time.Second}, 6},
		{"one is lost", 500, 10 * time.Millisecond, pieces{refuse: 3}, 25},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &tt.store
				p.began = time.Now()
				r, _ := logged()
				r.shard.Store = p
				relay := r.relay()
				var whole strings.Builder
				for range tt.chunks {
					whole.WriteString("word ")
					relay.add("m", "word ")
					time.Sleep(tt.every)
				}
				relay.stop()
				if len(p.got) == 0 || p.at[0] != 0 {
					t.Fatalf("the first of %d messages at %v, want at once", len(p.got), p.at)
				}
				if len(p.got) > tt.want {
					t.Errorf("%d messages, want %d", len(p.got), tt.want)
				}
				for i, piece := range p.got {
					if !strings.HasPrefix(whole.String()[piece.At:], piece.Text) {
						t.Errorf("message %d at byte %d is %q", i, piece.At, piece.Text)
					}
				}
				last := p.got[len(p.got)-1]
				if end := last.At + len(last.Text); end != whole.Len() {
					t.Errorf("%d of %d bytes were sent", end, whole.Len())
				}
			})
		})
	}
}
