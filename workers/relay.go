package workers

import (
	"context"
	"strings"
	"sync"
	"time"

	"leeway/broker"
)

// relayEvery is how often text is sent on. The first goes at once; what comes
// after it, token by token as a rule, is put together. Five times a second is
// more than anybody reads.
const relayEvery = 200 * time.Millisecond

// relay hands answer text on to the API replica that asked for it, beside the
// attempt and never in its way: what Redis cannot take at once is put together
// into larger pieces, and what it does not take at all is missing there. The
// replica notices, and waits for the whole answer.
type relay struct {
	mu    sync.Mutex // guards model and text
	model string     // which generates the text
	text  strings.Builder
	more  chan struct{} // holds one token while there is text
	last  chan struct{} // closed when no more comes
	ended chan struct{} // closed when all was sent
}

// relay begins to relay a claimed job's answer. stop must be called.
func (r *jobRun) relay() *relay {
	out := &relay{more: make(chan struct{}, 1), last: make(chan struct{}), ended: make(chan struct{})}
	go r.Background.Guard("relay", func() {
		defer close(out.ended)
		at := 0
		for {
			select {
			case <-out.more:
			case <-out.last:
			}
			at += r.sendOn(out, at)
			select {
			case <-time.After(relayEvery):
			case <-out.last:
				r.sendOn(out, at)
				return
			}
		}
	})
	return out
}

// sendOn sends the text that has come since, which begins at a byte of the
// answer, and returns how many bytes it has.
func (r *jobRun) sendOn(out *relay, at int) int {
	model, text := out.take()
	if text == "" {
		return 0
	}
	c := r.claim
	err := r.shard.Store.Relay(context.Background(), c.Relay, &broker.Piece{JobID: c.ID, Fence: c.Fence, Model: model, At: at, Text: text})
	if err != nil {
		r.Log.Debug("answer text not relayed", "job_id", c.ID, "error", err)
	}
	return len(text)
}

// add takes a piece. It does not block.
func (r *relay) add(model, piece string) {
	r.mu.Lock()
	r.model = model
	r.text.WriteString(piece)
	r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default:
	}
}

func (r *relay) take() (model, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text = r.text.String()
	r.text.Reset()
	return r.model, text
}

// stop waits until what was added has been sent. Nothing may be added after it.
func (r *relay) stop() {
	close(r.last)
	<-r.ended
}
