package lab

import (
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Ended says how an attempt ended, from the backend's side. The set is closed.
type Ended string

// The ends of an attempt.
const (
	EndedOpen       Ended = "open"        // not yet
	EndedOK         Ended = "ok"          // a whole answer was sent
	EndedFault      Ended = "fault"       // the fault's end was reached
	EndedRejected   Ended = "rejected"    // a bad request, an unknown model, a full queue
	EndedClientGone Ended = "client_gone" // the client went first; the work was dropped
	EndedAbandoned  Ended = "abandoned"   // the client went first; the work was finished
	EndedShutdown   Ended = "shutdown"    // the lab was stopped
)

// Attempt is one chat-completions request as the lab saw it. Instants are Unix
// milliseconds of the lab's host; durations are from its monotonic clock.
type Attempt struct {
	Seq            int64  `json:"seq"` // 1 for the first since the start
	ReceivedAtMS   int64  `json:"received_at_ms"`
	ID             string `json:"id"`                        // x-request-id of the response
	RequestID      string `json:"request_id,omitempty"`      // the client's X-Request-Id
	IdempotencyKey string `json:"idempotency_key,omitempty"` // the client's Idempotency-Key
	Model          string `json:"model,omitempty"`
	Fault          string `json:"fault,omitempty"`
	Stream         bool   `json:"stream"`
	Deduped        bool   `json:"deduped"`

	// QueueMS is how long it waited for a slot; InService how many held one
	// when it got its own, itself included (0: it never got one).
	QueueMS   float64 `json:"queue_ms"`
	InService int     `json:"in_service"`

	// FirstByteMS is when the first byte of answer text was sent, from receipt;
	// negative if none was. FirstByteAtMS and EndAtMS are 0 while unknown.
	FirstByteMS   float64 `json:"first_byte_ms"`
	FirstByteAtMS int64   `json:"first_byte_at_ms"`
	ElapsedMS     float64 `json:"elapsed_ms"`
	EndAtMS       int64   `json:"end_at_ms"`

	Status           int   `json:"status"` // HTTP status sent, 0 for none
	PromptTokens     int   `json:"prompt_tokens"`
	CompletionTokens int   `json:"completion_tokens"` // generated, as far as it got
	Ended            Ended `json:"ended"`
}

// attemptLog is a ring of the newest attempts.
type attemptLog struct {
	mu      sync.Mutex
	size    int
	next    int64 // Seq of the next attempt
	ring    []*Attempt
	dropped int64 // attempts that fell out of the ring
}

// record is one open attempt. Its fields are changed by the handler alone,
// under the log's lock.
type record struct {
	log   *attemptLog
	start time.Time
	a     *Attempt
}

// maxLogged bounds what is kept of a client's header.
const maxLogged = 256

func (l *attemptLog) open(h http.Header) *record {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	a := &Attempt{
		Seq: l.next, ReceivedAtMS: now.UnixMilli(), ID: "req_lab_" + strconv.FormatInt(l.next, 10), FirstByteMS: -1, Ended: EndedOpen,
		RequestID: clip(h.Get("X-Request-Id")), IdempotencyKey: clip(h.Get("Idempotency-Key")),
	}
	if len(l.ring) >= l.size {
		l.ring[0] = nil
		l.ring = l.ring[1:] // append moves it to a new array now and then
		l.dropped++
	}
	l.ring = append(l.ring, a)
	return &record{log: l, start: now, a: a}
}

func clip(s string) string { return s[:min(len(s), maxLogged)] }

// update changes the attempt under the lock.
func (r *record) update(f func(a *Attempt)) {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	f(r.a)
}

// firstByte notes that answer text is being sent. Only the first call counts.
func (r *record) firstByte() {
	now := time.Now()
	r.update(func(a *Attempt) {
		if a.FirstByteMS < 0 {
			a.FirstByteMS, a.FirstByteAtMS = millis(now.Sub(r.start)), now.UnixMilli()
		}
	})
}

// end closes the attempt. Only the first call counts.
func (r *record) end(how Ended) {
	now := time.Now()
	r.update(func(a *Attempt) {
		if a.Ended == EndedOpen {
			a.Ended, a.ElapsedMS, a.EndAtMS = how, millis(now.Sub(r.start)), now.UnixMilli()
		}
	})
}

// reject answers a request that is not one.
func (r *record) reject(w http.ResponseWriter, e *apiError) {
	r.update(func(a *Attempt) { a.Status = e.status })
	errorResponse(e).write(w)
	r.end(EndedRejected)
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// since returns copies of the attempts after seq, oldest first, and how many
// ever fell out of the ring.
func (l *attemptLog) since(seq int64) ([]Attempt, int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Attempt
	for _, a := range l.ring {
		if a.Seq > seq {
			out = append(out, *a)
		}
	}
	return out, l.dropped
}

// clear forgets all attempts. Sequence numbers go on.
func (l *attemptLog) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring, l.dropped = nil, 0
}

// count returns how many attempts there ever were.
func (l *attemptLog) count() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next
}
