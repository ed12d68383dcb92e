package httpapi

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/wire"
)

// pieceDepth is how many relayed pieces may wait for a client that is slow to
// read. Beyond that it gets the rest with the whole answer.
const pieceDepth = 256

// storeAway is how long past a job's deadline its end is waited for: with the
// store away it cannot be read.
const storeAway = 10 * time.Second

// chatCall is a chat completion under way.
type chatCall struct {
	*Server
	c       echo.Context
	request *chatRequest
	job     *broker.Submission
	verdict broker.Verdict
	ended   <-chan struct{}
	pieces  <-chan broker.Piece
}

// chat offers a chat completion as a job and answers when the job ends. A
// client that goes away takes its job back, unless an idempotency key says that
// it may come again.
func (s *Server) chat(c echo.Context) error {
	receivedAt := time.Now()
	req := c.Request()
	body, release, err := s.readBody(c, s.Config().LineBytes(callerOf(c).name))
	if err != nil {
		return err
	}
	defer release()
	call := &chatCall{Server: s, c: c}
	if call.request, err = decodeChat(body); err != nil {
		return err
	}
	var wrong error
	call.job, wrong = s.chatJob(c, call.request, receivedAt)
	key, err := idempotencyKey(req.Header)
	if err != nil {
		return cmp.Or(wrong, err)
	}
	var named broker.IdempotencyKey
	if key != "" {
		named = keyed(key, append(body, "\x00chat\x00"+req.Header.Get(wire.HeaderDeadline)...))
	}
	var v broker.Verdict
	if wrong != nil { // of a job on record what it was by then counts: its class may be gone
		var ok bool
		if v, ok = s.known(req.Context(), &submission{Producer: chatProducer(c)}, named); !ok {
			return wrong
		}
		call.job = &broker.Submission{
			Spec:       broker.Spec{ID: v.JobID, Class: call.request.Model},
			ReceivedAt: receivedAt, DeadlineInMS: max(v.DeadlineAtMS-s.Store.NowMS(), 0),
		}
	} else {
		call.job.Key = named
		if err := s.Admitter.Place(call.job); err != nil { // its id is final from here on
			return err
		}
	}
	if call.request.Stream {
		release, err := s.holdStream()
		if err != nil {
			return err
		}
		defer release()
		call.job.Relay = s.replica
		var done func()
		call.pieces, done = s.pieces.listen(call.job.ID, pieceDepth)
		defer done()
	}
	if wrong == nil {
		v, err = s.Admitter.Submit(req.Context(), call.job)
		limitHeaders(c.Response().Header(), &v)
	}
	// The wait for the answer is long, and the text is the store's by now.
	call.request.Messages, call.job.Text, call.job.Instruction = nil, "", ""
	release()
	if !v.Admitted() {
		return notAdmitted(&v, err)
	}
	call.verdict = v
	if call.request.Stream && v.JobID != call.job.ID { // the key named a job on record
		var done func()
		call.pieces, done = s.pieces.listen(v.JobID, pieceDepth)
		defer done()
	}
	ended, forget := s.ends.listen(v.JobID, 1)
	defer forget()
	call.ended = ended
	verdictHeaders(c.Response().Header(), wire.NewVerdict(&v))
	if call.request.Stream {
		err = call.stream()
	} else {
		err = call.whole()
	}
	if errors.Is(err, errClientGone) {
		if key != "" {
			return err
		}
		if _, lost := s.cancel(context.WithoutCancel(req.Context()), v.JobID); lost != nil {
			s.Log.Warn("job of a client that has gone not cancelled", "job_id", v.JobID, "error", lost)
		}
	}
	return err
}

// look reads the job; nil while it has not ended or cannot be read.
func (a *chatCall) look() (*broker.Job, error) {
	view, err := a.Store.Get(a.c.Request().Context(), a.verdict.JobID)
	switch {
	case err == nil && view.State == broker.StateDone:
		return view, nil
	case err == nil || errors.Is(err, broker.ErrUnavailable):
		if a.job.LeftMS(time.Now()) < -storeAway.Milliseconds() {
			return nil, broker.ErrUnavailable
		}
		return nil, nil //nolint:nilnil // not yet
	}
	return nil, err
}

// next waits for the job's end, handing what is relayed meanwhile to piece. It
// calls beat when nothing else happens.
func (a *chatCall) next(piece func(broker.Piece) error, beat func() error) (*broker.Job, error) {
	check, alive := time.NewTicker(recheck), time.NewTicker(heartbeat)
	defer check.Stop()
	defer alive.Stop()
	for {
		if view, err := a.look(); view != nil || err != nil {
			return view, err
		}
		for again := false; !again; {
			var err error
			select {
			case p := <-a.pieces:
				err = piece(p)
			case <-alive.C:
				err = beat()
			case <-a.ended:
				again = true
			case <-check.C:
				again = true
			case <-a.c.Request().Context().Done():
				err = errClientGone
			}
			if err != nil {
				return nil, err
			}
		}
	}
}

func (a *chatCall) whole() error {
	view, err := a.next(nil, func() error { return nil })
	if err != nil {
		if a.c.Request().Context().Err() != nil {
			return errClientGone
		}
		return err
	}
	if view.Outcome != broker.OutcomeUsable {
		return unanswered(view)
	}
	return a.c.JSON(http.StatusOK, chatCompletion{
		chatHead: a.head("chat.completion"),
		Choices:  []chatChoice{{Message: &chatText{Role: "assistant", Content: view.Answer}, FinishReason: finishReason(view)}},
		Usage:    chatUsageOf(view),
	})
}

// stream relays the answer while it arrives. What was lost on the way comes
// with the end; an answer that breaks off, or another than what was relayed,
// ends in an error event.
func (a *chatCall) stream() error {
	out, err := openStream(a.c)
	if err != nil {
		return errClientGone
	}
	r := relayed{send: func(text string, first bool) error {
		delta := chatText{Content: text}
		if first {
			delta.Role = "assistant"
		}
		return a.chunk(out, chatChoice{Delta: &delta}, nil)
	}}
	view, err := a.next(r.piece, out.beat)
	switch {
	case errors.Is(err, errClientGone), a.c.Request().Context().Err() != nil:
		return errClientGone
	case err != nil && !errors.Is(err, broker.ErrUnavailable) && !errors.Is(err, broker.ErrNotFound):
		return errClientGone // what could not be written
	case err == nil && view.Outcome != broker.OutcomeUsable:
		err = unanswered(view)
	case err == nil:
		if ok, sendErr := r.rest(view.Answer); sendErr != nil {
			return errClientGone
		} else if !ok {
			err = problem(http.StatusBadGateway, wire.ReasonAnswerChanged, "the answer was generated again after its beginning was relayed: ask for the job to read the whole")
		}
	}
	if err != nil {
		_ = out.send("", asAPIError(asProblem(err)))
		return nil
	}
	a.end(out, view)
	return nil
}

// end sends what follows an answer. A client that has gone meanwhile misses
// nothing of it.
func (a *chatCall) end(out *eventStream, view *broker.Job) {
	err := a.chunk(out, chatChoice{Delta: &chatText{}, FinishReason: finishReason(view)}, nil)
	if u := chatUsageOf(view); err == nil && u != nil && a.request.StreamOptions.IncludeUsage {
		err = a.chunk(out, chatChoice{}, u)
	}
	if err == nil {
		_ = out.write("data: [DONE]\n\n")
	}
}

// relayed follows an answer that comes in pieces.
type relayed struct {
	send func(text string, first bool) error
	sent strings.Builder
	// fence is the generation that is relayed; other pieces are not.
	fence int64
}

// piece sends a piece that follows on what was sent. Others are left for rest.
func (r *relayed) piece(p broker.Piece) error {
	if r.fence == 0 {
		r.fence = p.Fence
	}
	if p.Fence != r.fence || p.At != r.sent.Len() || p.Text == "" {
		return nil
	}
	return r.add(p.Text)
}

func (r *relayed) add(text string) error {
	first := r.sent.Len() == 0
	r.sent.WriteString(text)
	return r.send(text, first)
}

// rest sends what is missing of the answer; false when the answer does not
// begin with what was sent.
func (r *relayed) rest(answer string) (bool, error) {
	rest, ok := strings.CutPrefix(answer, r.sent.String())
	if !ok || rest == "" {
		return ok, nil
	}
	return true, r.add(rest)
}

// unanswered says why a job's end has no answer. The deadline was the job's,
// and it is spent: nothing is to be retried without a thought.
func unanswered(v *broker.Job) *wire.Problem {
	status, detail := http.StatusBadGateway, "the backends gave no usable answer"
	switch v.Outcome {
	case broker.OutcomeLate, broker.OutcomeExpired:
		status, detail = http.StatusGatewayTimeout, "the job missed its deadline"
	case broker.OutcomeCancelled:
		status, detail = http.StatusConflict, "the job was cancelled"
	case broker.OutcomeUsable, broker.OutcomeEmpty, broker.OutcomeTruncated, broker.OutcomeFailed:
	}
	if v.Cause != "" {
		detail += ": " + string(v.Cause)
	}
	return problem(status, string(v.Outcome), detail)
}

type chatHead struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
}

func (a *chatCall) head(object string) chatHead {
	return chatHead{ID: "chatcmpl-" + a.verdict.JobID, Object: object, Created: a.verdict.NowMS / 1000, Model: a.job.Class}
}

type chatCompletion struct {
	chatHead
	Choices []chatChoice `json:"choices"`
	Usage   *chatUsage   `json:"usage,omitempty"`
}

type chatChoice struct {
	Index        int       `json:"index"`
	Message      *chatText `json:"message,omitempty"`
	Delta        *chatText `json:"delta,omitempty"`
	FinishReason *string   `json:"finish_reason"`
}

type chatText struct {
	Role    string `json:"role,omitempty"`
	Content string `json:"content,omitempty"`
}

type chatUsage struct {
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	TotalTokens      int64 `json:"total_tokens"`
	PromptDetails    struct {
		CachedTokens int64 `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		ReasoningTokens int64 `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

// chunk sends one piece of a stream; that with the usage has no choice.
func (a *chatCall) chunk(out *eventStream, choice chatChoice, usage *chatUsage) error {
	chunk := chatCompletion{chatHead: a.head("chat.completion.chunk"), Choices: []chatChoice{}, Usage: usage}
	if usage == nil {
		chunk.Choices = append(chunk.Choices, choice)
	}
	return out.send("", chunk)
}

// finishReason is how an answer ended: length when a limit of tokens, or the
// deadline of a class that counts the first byte alone, cut it.
func finishReason(v *broker.Job) *string {
	reason := "length"
	if v.FinishReason == "stop" {
		reason = "stop"
	}
	return &reason
}

func chatUsageOf(v *broker.Job) *chatUsage {
	u := v.Usage
	if u == nil {
		return nil
	}
	out := &chatUsage{PromptTokens: u.InputTokens, CompletionTokens: u.OutputTokens, TotalTokens: u.InputTokens + u.OutputTokens}
	out.PromptDetails.CachedTokens, out.CompletionDetails.ReasoningTokens = u.CachedTokens, u.ReasoningTokens
	return out
}
