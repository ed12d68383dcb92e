package lab

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"
)

// play is the answering of one request.
type play struct {
	s      *Server
	w      http.ResponseWriter
	ctx    context.Context // of the work
	client context.Context // of the client's presence
	req    *request
	plan   plan
	rec    *record

	finish bool // also if the client goes

	out     *writer
	service time.Time // when it got its slot
}

// run answers and reports whether the answer was whole.
func (p *play) run() bool {
	if p.plan.response != nil || p.plan.reset {
		p.respond()
		return false
	}
	if err := p.s.slots.acquire(p.ctx); err != nil {
		if errors.Is(err, errQueueFull) {
			p.rec.reject(p.w, newError(http.StatusServiceUnavailable, serverError, "", "overloaded", err.Error()))
			return false
		}
		p.rec.end(p.gone())
		return false
	}
	defer p.s.slots.release()
	p.service = time.Now()
	inService, _ := p.s.slots.counts()
	p.rec.update(func(a *Attempt) {
		a.QueueMS, a.InService = millis(p.service.Sub(p.rec.start)), inService
	})
	return p.answer(p.timing())
}

// DedupedHeader is "true" on a response whose answer was made for another
// request with the same Idempotency-Key. The body says "deduped": true as well.
const DedupedHeader = "X-Lab-Deduped"

// copy sends an answer that another request made: at once, without a slot, and
// only while its reader is there.
func (p *play) copy(ans answer) {
	ans.deduped = true
	p.plan, p.ctx, p.finish = newPlan(fault{}, ans), p.client, false
	p.rec.update(func(a *Attempt) { a.Deduped = true })
	p.w.Header().Set(DedupedHeader, "true")
	p.service = time.Now()
	p.answer(timing{})
}

// gone says how an attempt ended whose context has ended.
func (p *play) gone() Ended {
	if p.s.base.Err() != nil {
		return EndedShutdown
	}
	return EndedClientGone
}

// finished says how an attempt ended that came to its end.
func (p *play) finished(whole bool) Ended {
	switch {
	case p.client.Err() != nil && whole:
		return EndedAbandoned
	case p.client.Err() != nil:
		return EndedClientGone
	case whole:
		return EndedOK
	}
	return EndedFault
}

// respond gives the responses that take no slot.
func (p *play) respond() {
	if !sleep(p.ctx, p.plan.firstByte) {
		p.rec.end(p.gone())
		return
	}
	if p.plan.response != nil {
		p.rec.update(func(a *Attempt) { a.Status = p.plan.response.status })
	}
	p.rec.end(p.finished(false))
	if p.plan.reset {
		breakConnection(p.w)
		return
	}
	p.plan.response.write(p.w)
}

// breakConnection breaks the connection with a TCP reset, or just breaks it
// where there is no TCP.
func breakConnection(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if l, ok := conn.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0)
	}
	_ = conn.Close()
}

// timing is when the pieces of an answer are due.
type timing struct {
	first   time.Duration
	tail    Tail
	profile Profile // for its load
}

// timing draws the request's times.
func (p *play) timing() timing {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	t := timing{p.s.profile.Draw(p.s.draws), p.s.tail, p.s.profile}
	if p.plan.firstByte > 0 {
		t.first = p.plan.firstByte
	}
	return t
}

// answer sends the planned answer and reports whether it was whole. When it
// cannot go on, the attempt is ended and the rest left out.
func (p *play) answer(t timing) bool {
	if p.plan.silent {
		<-p.ctx.Done()
		p.rec.end(p.gone())
		return false
	}
	p.out = newWriter(p)
	defer p.out.close()
	if p.plan.headersOnly {
		p.started()
		_ = p.out.flush() // a client that has gone ends ctx
		<-p.ctx.Done()
		p.rec.end(p.gone())
		return false
	}
	whole, err := p.pieces(t)
	if err != nil {
		p.rec.end(p.gone())
		return false
	}
	how := p.finished(whole)
	if how == EndedAbandoned || how == EndedClientGone {
		p.rec.end(how)
		return whole
	}
	if !p.req.stream {
		if p.plan.shown() && p.plan.errorAt != 0 && len(p.plan.ans.pieces) > 0 {
			p.rec.firstByte()
		}
		p.started()
		p.out.body()
	}
	// Noted before it is sent: who has the answer finds its attempt ended.
	p.rec.end(how)
	if p.out.flush() != nil {
		p.rec.update(func(a *Attempt) { a.Ended = EndedClientGone })
	}
	if p.plan.abrupt {
		panic(http.ErrAbortHandler) // breaks the connection in the middle of the body
	}
	return whole
}

func (p *play) started() {
	p.rec.update(func(a *Attempt) { a.Status = cmp.Or(p.plan.status, http.StatusOK) })
}

// generated counts tokens as made.
func (p *play) generated(n int) { p.rec.update(func(a *Attempt) { a.CompletionTokens += n }) }

// pieces works through the answer in time and, if it is streamed, sends each
// piece. It reports whether the end was a whole one; the error is that of the
// context.
func (p *play) pieces(t timing) (whole bool, err error) {
	n := len(p.plan.ans.pieces)
	base := p.service.Add(t.first)
	due := base
	for i := 0; ; i++ {
		if i > 0 && i == p.plan.pauseAt {
			base, due = base.Add(p.plan.pause), due.Add(p.plan.pause)
		}
		switch {
		case p.plan.gap > 0:
			due = base.Add(time.Duration(i) * p.plan.gap)
		case t.profile.kind != kindLoad:
			due = base.Add(t.tail.at(i, n))
		case i < n || n == 0:
			held, _ := p.s.slots.counts()
			due = due.Add(t.profile.perToken(held))
		}
		if err := p.wait(due, i == 0); err != nil {
			return false, err
		}
		if i == 0 && p.req.stream {
			p.started()
		}
		switch {
		case p.plan.errorAt == i:
			if p.req.stream {
				p.out.fail()
			}
			return false, nil
		case p.plan.cutAt > 0 && i >= p.plan.cutAt:
			return false, nil
		case i >= n:
			p.generated(p.plan.ans.billed - n)
			if p.req.stream {
				p.out.finish()
				if err := p.wait(due.Add(p.plan.usageLate), false); err != nil {
					return false, err
				}
				p.out.end()
			}
			return true, nil
		}
		p.generated(1)
		if p.req.stream {
			if p.plan.shown() && (i != p.plan.badAt || i == 0) {
				p.rec.firstByte()
			}
			p.out.piece(i)
		}
	}
}

// keepAlive is how often a comment is sent while there is nothing else.
const keepAlive = time.Second

// wait sends what is written and sleeps until due. Its error says that the
// work is over.
func (p *play) wait(due time.Time, first bool) error {
	for {
		d := time.Until(due)
		if d <= 0 {
			return p.ctx.Err()
		}
		if first && p.plan.comments && p.req.stream {
			p.started()
			p.out.comment()
			d = min(d, keepAlive)
		}
		if p.out.pending && p.out.flush() != nil && !p.finish {
			return p.out.err
		}
		if !sleep(p.ctx, d) {
			return p.ctx.Err()
		}
	}
}

// sleep waits for d and reports whether it passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
