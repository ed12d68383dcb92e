//go:build bench

package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"leeway/broker"
)

const (
	streamChunks = 500
	streamEvery  = 10 * time.Millisecond
	streams      = 8 // at once
)

// tokens is a backend that streams an answer token by token.
type tokens struct {
	mu    sync.Mutex
	first []time.Time // when the first token of each answer went out
}

func (b *tokens) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range streamChunks {
		if i == 0 {
			b.mu.Lock()
			b.first = append(b.first, time.Now())
			b.mu.Unlock()
		}
		_, _ = io.WriteString(w, `data: {"choices":[{"index":0,"delta":{"content":" word"}}]}`+"\n\n")
		w.(http.Flusher).Flush()
		time.Sleep(streamEvery)
	}
	_, _ = io.WriteString(w, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+"\n\n"+
		`data: {"choices":[],"usage":{"prompt_tokens":400,"completion_tokens":500,"total_tokens":900}}`+"\n\ndata: [DONE]\n\n")
}

// stream is what relaying a streamed answer to the API replica that asked for it
// takes of Redis.
func stream(t *testing.T, r *Report) {
	g := newGate(t, 0, 100)
	backend := &tokens{}
	newWorkerFor(t, g, streams, backend)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	in, done := g.store.Relayed(ctx, "bench")
	defer func() { _ = done() }()
	time.Sleep(100 * time.Millisecond) // it is subscribed
	var messages, bytes, delays []float64
	for range *rounds {
		backend.first = nil
		for range streams {
			j := job(time.Minute)
			j.Relay, j.MaxOutputTokens = "bench", streamChunks
			_, err := g.adm.Submit(ctx, j)
			must(t, err)
		}
		var firsts []time.Time
		sent, size, got := 0, 0, map[string]int{}
		for whole := 0; whole < streams; {
			select {
			case msg := <-in:
				var p broker.Piece
				must(t, json.Unmarshal([]byte(msg), &p))
				if p.At == 0 {
					firsts = append(firsts, time.Now())
				}
				sent, size = sent+1, size+len(msg)
				if got[p.JobID] += len(p.Text); got[p.JobID] == streamChunks*len(" word") {
					whole++
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("answers have %v bytes of %d", got, streamChunks*len(" word"))
			}
		}
		messages = append(messages, float64(sent)/streams)
		bytes = append(bytes, float64(size)/streams)
		var late time.Duration // the mean over the answers, whose order does not matter for it
		for i := range firsts {
			late += firsts[i].Sub(backend.first[i])
		}
		delays = append(delays, late.Seconds()*1000/streams)
	}
	takes := fmt.Sprintf("%d chunks, one each %v; %d answers at once", streamChunks, streamEvery, streams)
	r.Measures = append(r.Measures,
		note(Values("streamed answer of 500 chunks: Redis messages", "", messages), takes),
		note(Values("streamed answer of 500 chunks: bytes in them", "B", bytes), fmt.Sprintf("%d of them text", streamChunks*len(" word"))),
		note(Values("streamed answer: first text from the backend to the replica", "ms", delays), "mean over the answers"))
}
