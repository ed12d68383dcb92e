package backend

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"leeway/broker"
)

// sink gathers one answer from the pieces a protocol finds, tells the observer,
// and in the end says what the answer was worth.
type sink struct {
	c     *Client
	req   *Request
	obs   Observer
	dog   *watchdog
	start time.Time

	think thinker
	// Text and reasoning come in pieces that may end in half a character.
	words, thoughts joiner
	text            strings.Builder
	reasoning       strings.Builder
	// answer is what is known of it so far; result adds the texts and the
	// usage.
	answer   Answer
	seen     streamed
	word     string        // the last finish reason, in the backend's own words
	reopened bool          // text came after a finish reason: such a word is not the end
	beside   bool          // the event at hand brought text
	arrived  time.Duration // when the last text came, held back or not
	toolCall bool
	refusal  bool
	usage    report
	// choice is the index under which the last text came; chosen is set once two
	// came under the same.
	choice int64
	chosen bool
	// any is set once anything of the protocol was seen.
	any bool
	// connected is set once there was a connection to the backend.
	connected atomic.Bool
}

func newSink(c *Client, r *Request, obs Observer, dog *watchdog) *sink {
	return &sink{c: c, req: r, obs: obs, dog: dog, start: time.Now(), choice: -1, seen: streamed{
		inputTokens: r.InputTokens(),
		inputBytes:  int64(len(r.System) + len(r.Text)),
		limit:       int64(r.OutputLimit()),
	}}
}

// addText takes a piece of the answer, which may begin with reasoning between
// marks.
func (s *sink) addText(piece string) error {
	if piece == "" {
		return nil
	}
	s.any, s.beside, s.arrived = true, true, time.Since(s.start)
	piece = s.words.join(piece)
	if s.answer.Finish != FinishNone && !Blank(piece) {
		s.answer.Finish, s.seen.ended, s.reopened = FinishNone, false, true
	}
	reasoning, answer := s.think.split(piece)
	s.addReasoning(reasoning)
	return s.addAnswer(answer)
}

// addAnswer takes a piece that is answer for certain.
func (s *sink) addAnswer(piece string) error {
	if piece == "" {
		return nil
	}
	if s.text.Len()+len(piece) > s.c.cfg.maxAnswerBytes {
		return &Error{Reason: ReasonTooLarge, Detail: "the answer is over its bound"}
	}
	s.text.WriteString(piece)
	s.seen.pieces++
	s.seen.bytes += int64(len(piece))
	s.answer.LastByte = max(s.answer.LastByte, s.arrived)
	if !s.answer.HasText && !Blank(piece) {
		s.answer.HasText, s.answer.FirstByte = true, s.arrived
		if s.obs.FirstByte != nil {
			s.obs.FirstByte(s.answer.FirstByte)
		}
	}
	if s.answer.HasText {
		s.alive()
	}
	if s.obs.Text != nil {
		s.obs.Text(piece)
	}
	return nil
}

// addReasoning takes a piece of what the model thinks aloud. It is a token, so
// that it ends a stall, but no first byte.
func (s *sink) addReasoning(piece string) {
	if piece == "" {
		return
	}
	s.any = true
	s.seen.pieces++
	s.seen.bytes += int64(len(piece))
	piece = s.thoughts.join(piece)
	if room := maxReasoningBytes - s.reasoning.Len(); room > 0 {
		s.reasoning.WriteString(piece[:min(len(piece), room)])
	}
	if s.answer.HasText {
		s.alive()
	}
}

func (s *sink) alive() {
	if s.answer.Finish == FinishNone {
		s.dog.reset(s.c.cfg.Stall, errStall)
	}
}

// end takes the backend's word on how the answer ended. An empty word is no
// word, and the last one counts: some gateways send one with every chunk.
func (s *sink) end(word string) {
	if word == "" {
		return
	}
	first := s.answer.Finish == FinishNone
	s.any, s.seen.ended = true, true
	s.answer.Finish, s.word = finishOf(word), word
	if !first {
		return // repeated without text, it must not start the tail again
	}
	s.answer.LastByte = time.Since(s.start)
	switch {
	case !s.answer.HasText: // the first byte's time still applies
	case s.reopened || s.beside && s.seen.pieces == 1:
		// Each chunk may have its word: the next is waited for as any other.
		s.dog.reset(max(Tail, s.c.cfg.Stall), errTail)
	default:
		s.dog.reset(Tail, errTail)
	}
}

// terminate takes the protocol's terminator: what came until now is all, and the
// last word says how it ended even if text followed that.
func (s *sink) terminate() {
	s.any = true
	if s.reopened && s.answer.Finish == FinishNone {
		s.answer.Finish, s.seen.ended = finishOf(s.word), true
	}
}

// flush takes what was held back, now that nothing more will say what it is.
// What does not fit the bound is dropped: the answer before it is at its end
// and too large already.
func (s *sink) flush() {
	reasoning, answer := s.think.split(s.words.rest())
	s.addReasoning(reasoning)
	_ = s.addAnswer(answer)
	reasoning, answer = s.think.rest()
	s.addReasoning(reasoning)
	_ = s.addAnswer(answer)
}

// Blank reports whether nothing of a text can be seen: it is made of spaces,
// controls, and characters without a form of their own.
func Blank(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool {
		return !unicode.IsSpace(r) && r != '\u2800' && // a pattern of no dots
			!unicode.In(r, unicode.Cc, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
	})
}

// finishOf knows the finish reasons of the protocols and their dialects.
func finishOf(word string) Finish {
	switch strings.ToLower(word) {
	case "stop", "end_turn", "stop_sequence", "eos", "eos_token", "complete":
		return FinishStop
	case "length", "max_tokens", "model_length", "model_context_window_exceeded":
		return FinishLength
	case "tool_calls", "tool_call", "tool_use", "function_call":
		return FinishTool
	case "content_filter", "refusal", "safety", "recitation", "prohibited_content":
		return FinishFilter
	case "error":
		return FinishError
	case "abort", "aborted", "cancelled", "canceled", "load", "unload", "pause_turn":
		return FinishAborted
	}
	return FinishOther
}

// result says what the answer was worth, and with which error the reading
// ended if it is not whole.
func (s *sink) result(ctx context.Context, status int, readErr error) (Answer, error) {
	s.flush()
	if s.reopened && readErr != nil {
		s.answer.Finish, s.seen.ended = FinishNone, false
	}
	a := s.answer
	a.Text, a.Reasoning = s.text.String(), strings.ToValidUTF8(s.reasoning.String(), "")
	a.Usage = s.usage.settle(s.seen)
	if untouched(status, s.connected.Load()) {
		a.Usage = Unbilled()
	}
	e := s.fault(ctx, readErr, a.Usage)
	if e == nil {
		a.Whole = true
		return a, nil
	}
	e.Backend = s.c.cfg.Name
	if e.Status == 0 {
		e.Status = status
	}
	secrets := []string{string(s.c.cfg.Key)}
	for _, v := range s.c.cfg.Headers {
		secrets = append(secrets, string(v))
	}
	e.Detail, e.Advice = clean(e.Detail, secrets...), clean(e.Advice, secrets...)
	return a, e
}

// fault is what keeps the answer from being whole; nil if it is.
func (s *sink) fault(ctx context.Context, readErr error, u Usage) *Error {
	// Once the backend has said how the answer ended, nothing that happens to
	// the connection can change it, unless text has followed such a word.
	if s.answer.Finish == FinishNone {
		return s.unfinished(ctx, readErr)
	}
	switch {
	case s.refusal || s.answer.Finish == FinishFilter:
		return &Error{Reason: ReasonRefused, Detail: "finish reason " + s.word}
	case s.answer.Finish == FinishTool || (s.toolCall && !s.answer.HasText):
		return &Error{Reason: ReasonToolCall}
	case s.answer.Finish == FinishError:
		return &Error{Reason: ReasonUpstreamError, Detail: "finish reason " + s.word}
	case s.answer.Finish == FinishAborted:
		return &Error{Reason: ReasonTruncated, Detail: "finish reason " + s.word}
	case s.answer.Finish == FinishOther:
		return &Error{Reason: ReasonBadAnswer, Detail: "unknown finish reason " + s.word}
	case !s.answer.HasText:
		return s.emptyAnswer(u)
	case s.answer.Finish == FinishLength && !s.ownLimit(u):
		if u.ReasoningTokens > 0 {
			return &Error{Reason: ReasonTruncated, Detail: "reasoning used up the output limit", Advice: adviseAllowance}
		}
		return &Error{Reason: ReasonTruncated, Detail: "ended before the output limit asked for"}
	}
	return nil
}

// emptyAnswer is a whole answer without answer text. That of a model which had
// only come to its reasoning says what to change.
func (s *sink) emptyAnswer(u Usage) *Error {
	e := &Error{Reason: ReasonEmpty}
	if s.answer.Finish == FinishLength && (u.ReasoningTokens > 0 || s.reasoning.Len() > 0) {
		e.Detail, e.Advice = "reasoning used up the output limit", adviseAllowance
	}
	return e
}

// ownLimit reports whether the limit that ended the answer is the one asked
// for, of which reasoning has not used up what was the answer's. Servers differ by
// one on whether the end token counts.
func (s *sink) ownLimit(u Usage) bool {
	answer, sent := int64(s.req.MaxOutputTokens), int64(s.req.OutputLimit())
	if answer <= 0 || u.Known != broker.KnownReported {
		return answer > 0
	}
	return u.OutputTokens >= sent-1 && u.OutputTokens-u.ReasoningTokens >= answer-1
}

// unfinished is the fault of an answer whose end the backend never announced.
func (s *sink) unfinished(ctx context.Context, readErr error) *Error {
	var known *Error
	if errors.As(readErr, &known) && known.Reason != ReasonConnect && known.Reason != ReasonReset {
		return known
	}
	if readErr != nil && ctx.Err() != nil {
		switch cause := context.Cause(ctx); {
		case errors.Is(cause, errFirstByte):
			return &Error{Reason: ReasonFirstByte}
		case errors.Is(cause, errStall):
			return &Error{Reason: ReasonStall}
		case errors.Is(cause, errTail):
			return &Error{Reason: ReasonTruncated, Detail: "text after a finish reason, then neither more nor a terminator"}
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return &Error{Reason: ReasonDeadline}
		default:
			return &Error{Reason: ReasonCancelled}
		}
	}
	switch {
	case known != nil:
		return known
	case readErr != nil && !s.answer.HasText:
		return &Error{Reason: ReasonReset, Detail: readErr.Error()}
	case readErr != nil:
		return &Error{Reason: ReasonTruncated, Detail: readErr.Error()}
	case !s.any:
		return &Error{Reason: ReasonEmpty, Detail: "empty body"}
	}
	return &Error{Reason: ReasonTruncated, Detail: "no finish reason"}
}
