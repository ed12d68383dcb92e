package httpapi

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/config"
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
	pieces  <-chan broker.Piece // nil: the answer is not relayed
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
		return s.charged(c, chatProducer(c), err)
	}
	var wrong error
	call.job, wrong = s.chatJob(c, call.request, receivedAt)
	key, err := idempotencyKey(req.Header)
	if err != nil {
		return s.charged(c, chatProducer(c), cmp.Or(wrong, err))
	}
	var named broker.IdempotencyKey
	if key != "" {
		named = keyed(key, append(body, "\x00chat\x00"+req.Header.Get(wire.HeaderDeadline)...))
	}
	var v broker.Verdict
	if wrong != nil { // of a job on record what it was by then counts: its class may be gone
		var ok bool
		if v, ok = s.known(req.Context(), &submission{Producer: chatProducer(c)}, named); !ok {
			return s.charged(c, chatProducer(c), wrong)
		}
		call.job = &broker.Submission{
			Spec:       broker.Spec{ID: v.JobID, Class: call.request.Model},
			ReceivedAt: receivedAt, DeadlineInMS: max(v.DeadlineAtMS-s.clockAt(receivedAt), 0),
		}
	} else {
		call.job.Key = named
		if err := s.Admitter.Place(call.job); err != nil { // its id is final from here on
			return err
		}
	}
	var leave func()
	if call.request.Stream {
		leave, err = s.holdStream(c)
	} else {
		leave, err = s.holdWait(c, storeAway) // as long as the job takes
	}
	if err != nil {
		return err
	}
	defer leave()
	live := call.request.Stream && cmp.Or(call.request.Relay, s.Config().Classes[call.request.Model].Relay) != config.RelayWhole
	if live {
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
	if live && v.JobID != call.job.ID { // the key named a job on record
		var done func()
		call.pieces, done = s.pieces.listen(v.JobID, pieceDepth)
		defer done()
	}
	ended, forget := s.ends.listen(v.JobID, 1)
	defer forget()
	call.ended = ended
	verdictHeaders(c.Response().Header(), wire.NewVerdict(&v))
	c.Response().Header().Set(wire.HeaderClass, call.job.Class)
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
	by := servedBy(view)
	a.c.Response().Header().Set(wire.HeaderBackend, by.Backend)
	a.c.Response().Header().Set(wire.HeaderAttempts, strconv.Itoa(by.Attempts))
	return a.c.JSON(http.StatusOK, chatCompletion{
		chatHead: a.head("chat.completion", by.Model),
		Choices:  []chatChoice{{Message: &chatText{Role: "assistant", Content: view.Answer}, FinishReason: finishReason(view)}},
		Usage:    chatUsageOf(view),
	})
}

// stream relays the answer while it arrives, or sends comments until it is there
// as a whole. What was lost on the way comes with the end; an answer that breaks
// off, or another than what was relayed, ends in an error event.
func (a *chatCall) stream() error {
	out, err := openStream(a.c)
	if err != nil {
		return errClientGone
	}
	r := relayed{send: func(model, text string, first bool) error {
		delta := chatText{Content: text}
		if first {
			delta.Role = "assistant"
		}
		return out.send("", a.chunk(cmp.Or(model, a.job.Class), chatChoice{Delta: &delta}))
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
		if ok, sendErr := r.rest(servedBy(view).Model, view.Answer); sendErr != nil {
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
	by := servedBy(view)
	last := a.chunk(by.Model, chatChoice{Delta: &chatText{}, FinishReason: finishReason(view)})
	last.Served = by
	err := out.send("", last)
	if u := chatUsageOf(view); err == nil && u != nil && a.request.StreamOptions.IncludeUsage {
		used := a.chunk(by.Model)
		used.Usage = u
		err = out.send("", used)
	}
	if err == nil {
		_ = out.write("data: [DONE]\n\n")
	}
}

// relayed follows an answer that comes in pieces.
type relayed struct {
	send func(model, text string, first bool) error
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
	return r.add(p.Model, p.Text)
}

func (r *relayed) add(model, text string) error {
	first := r.sent.Len() == 0
	r.sent.WriteString(text)
	return r.send(model, text, first)
}

// rest sends what is missing of the answer; false when the answer does not
// begin with what was sent.
func (r *relayed) rest(model, answer string) (bool, error) {
	rest, ok := strings.CutPrefix(answer, r.sent.String())
	if !ok || rest == "" {
		return ok, nil
	}
	return true, r.add(model, rest)
}

// turnedDown are the reasons that lie in the text itself, by OpenAI's codes for
// them, which its clients know.
var turnedDown = map[string]string{"refused": "content_filter", "context_length": "context_length_exceeded"}

// unanswered says why a job's end has no answer. The deadline was the job's,
// and it is spent: nothing is to be retried without a thought.
func unanswered(v *broker.Job) *wire.Problem {
	status, detail := http.StatusBadGateway, "the backends gave no usable answer"
	switch v.Outcome {
	case broker.OutcomeLate, broker.OutcomeExpired:
		status, detail = http.StatusGatewayTimeout, "the job missed its deadline"
	case broker.OutcomeRevoked:
		status, detail = http.StatusServiceUnavailable, "the job's pool lost its capacity and no other could take it"
	case broker.OutcomeCancelled:
		status, detail = http.StatusConflict, "the job was cancelled"
	case broker.OutcomeUsable, broker.OutcomeEmpty, broker.OutcomeTruncated, broker.OutcomeFailed:
	}
	code := string(v.Outcome)
	if openAI := turnedDown[v.Reason]; openAI != "" {
		status, code, detail = http.StatusBadRequest, openAI, "the provider turned the text down: "+cmp.Or(v.Detail, v.Reason)
	} else if v.Cause != "" {
		detail += ": " + string(v.Cause)
		if v.Reason != "" && v.Reason != string(v.Cause) {
			detail += ", " + v.Reason
		}
	}
	return problem(status, code, detail)
}

type chatHead struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
}

func (a *chatCall) head(object, model string) chatHead {
	return chatHead{ID: "chatcmpl-" + a.verdict.JobID, Object: object, Created: a.verdict.NowMS / 1000, Model: model}
}

// served is who answered a job, under the names that the job itself has them.
type served struct {
	Class    string `json:"class"`
	Backend  string `json:"backend"`
	Model    string `json:"model"`
	Attempts int    `json:"attempts"`
}

// servedBy says who answered. A record from before models were kept has the class
// in the model's place.
func servedBy(v *broker.Job) *served {
	return &served{Class: v.Class, Backend: v.Backend, Model: cmp.Or(v.Model, v.Class), Attempts: v.Attempts}
}

type chatCompletion struct {
	chatHead
	Choices []chatChoice `json:"choices"`
	Usage   *chatUsage   `json:"usage,omitempty"`
	// Served is in the last chunk of a stream, whose headers went before.
	Served *served `json:"leeway,omitempty"`
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

// chunk is one piece of a stream; that with the usage has no choice.
func (a *chatCall) chunk(model string, choices ...chatChoice) *chatCompletion {
	return &chatCompletion{chatHead: a.head("chat.completion.chunk", model), Choices: append([]chatChoice{}, choices...)}
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
