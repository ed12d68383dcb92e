package lab

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// writePatience is how long a client may take to read what is being sent.
const writePatience = time.Minute

// writer writes one answer, streamed or whole, in the form that its plan asks
// for.
type writer struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	to     io.Writer // w, or gz over it
	gz     *gzip.Writer
	plan   *plan
	stream bool
	usage  bool  // asked for
	head   chunk // what all chunks begin with
	sent   int   // completion tokens
	began  bool  // the role chunk is out
	err    error // the first one; nothing is written after it

	pending bool // something is written and not flushed
}

func newWriter(p *play) *writer {
	o := &writer{w: p.w, rc: http.NewResponseController(p.w), to: p.w, plan: &p.plan, stream: p.req.stream, usage: p.req.includeUsage}
	o.head = chunk{
		ID: "chatcmpl-" + strings.TrimPrefix(p.rec.a.ID, "req_"), Object: "chat.completion",
		Created: time.Now().Unix(), Model: p.req.model, Choices: []choice{}, Error: p.plan.noError, Deduped: p.plan.ans.deduped,
	}
	h := p.w.Header()
	h.Set("Content-Type", "application/json")
	if o.stream {
		o.head.Object = "chat.completion.chunk"
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
	}
	if p.plan.mime != "" {
		h.Set("Content-Type", p.plan.mime)
	}
	if p.plan.gzip {
		o.gz = gzip.NewWriter(p.w)
		o.to = o.gz
		if p.plan.gzipTold {
			h.Set("Content-Encoding", "gzip")
		}
	}
	if p.plan.status != 0 {
		p.w.WriteHeader(p.plan.status)
	}
	return o
}

// write buffers b.
func (o *writer) write(b []byte) {
	if o.err == nil {
		_ = o.rc.SetWriteDeadline(time.Now().Add(writePatience)) // not every writer has one
		_, o.err = o.to.Write(b)
		o.pending = true
	}
}

// flush sends what is buffered, the headers at least, and returns the first
// error there was.
func (o *writer) flush() error {
	o.pending = false
	if o.err == nil && o.gz != nil {
		o.err = o.gz.Flush()
	}
	if o.err == nil {
		_ = o.rc.SetWriteDeadline(time.Now().Add(writePatience))
		o.err = o.rc.Flush()
	}
	return o.err
}

// close ends the compression, if there is one.
func (o *writer) close() {
	if o.gz != nil && o.err == nil {
		o.err = o.gz.Close()
	}
}

// comment writes what an SSE reader must pass over.
func (o *writer) comment() { o.write([]byte(": keep-alive\n\n")) }

// event writes one event of a stream.
func (o *writer) event(data []byte) {
	var b bytes.Buffer
	if o.plan.comments {
		b.WriteString(": keep-alive\n\n")
	}
	if o.plan.pings {
		b.WriteString(emptyEvents)
	}
	data = o.halved(data)
	prefix := "data: "
	if o.plan.noSpace {
		prefix = "data:"
	}
	if o.plan.splitData {
		var wide bytes.Buffer
		if json.Indent(&wide, data, "", " ") == nil {
			data = wide.Bytes()
		}
	}
	for line := range bytes.SplitSeq(data, []byte("\n")) {
		b.WriteString(prefix)
		b.Write(line)
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	o.write(b.Bytes())
}

// emptyEvents are events that carry nothing, in forms that gateways send to keep
// a connection alive.
const emptyEvents = "event: ping\ndata: {}\n\ndata: {\"type\":\"ping\"}\n\ndata: {}\n\ndata: null\n\ndata: {\"id\":\"chatcmpl-0\",\"object\":\"chat.completion.chunk\"}\n\n"

// Characters that stand for the halves of a smile until they are on the wire.
const highHalf, lowHalf = "\ue000", "\ue001"

// halved writes those halves as JSON escapes them.
func (o *writer) halved(data []byte) []byte {
	if !o.plan.halves {
		return data
	}
	return []byte(strings.NewReplacer(highHalf, `\ud83d`, lowHalf, `\ude00`).Replace(string(data)))
}

// choice is the one choice of a chunk or of a whole answer; an empty finish
// reason is null.
func (o *writer) choice(c content, finish string) []choice {
	var ch choice
	if o.plan.index != nil {
		ch.Index = o.plan.index(o.sent)
	}
	if finish != "" {
		ch.FinishReason = &finish
	}
	if o.stream {
		ch.Delta = &c
	} else {
		c.Role = "assistant"
		ch.Message = &c
	}
	return []choice{ch}
}

// delta writes a chunk with one choice.
func (o *writer) delta(c content, finish string, padding int) {
	ch := o.head
	ch.Choices = o.choice(c, finish)
	ch.Padding = strings.Repeat("x", padding)
	switch {
	case o.plan.usageForm == usageCumulative, o.plan.usageForm == usageLast && finish != "":
		ch.Usage = o.plan.usageFor(o.sent)
	case o.usage && o.plan.usageForm == usageAsked:
		ch.Usage = json.RawMessage("null")
	}
	o.event(marshal(ch))
}

// begin writes the role chunk once.
func (o *writer) begin() {
	if !o.began {
		o.began = true
		o.delta(content{Role: "assistant", Content: new("")}, "", 0)
	}
}

// piece writes piece i of the answer.
func (o *writer) piece(i int) {
	o.begin()
	o.sent++
	if o.plan.badAt > 0 && i == o.plan.badAt {
		o.event([]byte(`{"id":"` + o.head.ID + `","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"`))
		return
	}
	padding := 0
	if i == min(1, len(o.plan.ans.pieces)-1) {
		padding = o.plan.padding
	}
	word := ""
	if o.plan.earlyAt < 0 || i == o.plan.earlyAt {
		word = o.plan.early
	}
	o.delta(o.content(o.plan.ans.pieces[i]), word, padding)
	if i == 0 && o.plan.lines > 0 {
		o.write(append(bytes.Repeat([]byte(": x\n"), o.plan.lines), '\n'))
	}
}

// content puts text where the plan wants it.
func (o *writer) content(text string) content {
	switch {
	case o.plan.reasoning == "reasoning":
		return content{Reasoning: text}
	case o.plan.reasoning != "":
		return content{ReasoningContent: text}
	case o.plan.refusal:
		return content{Refusal: &text}
	}
	return content{Content: &text}
}

// finish writes the rest of an answer, and its finish reason.
func (o *writer) finish() {
	if o.plan.empty {
		return // a body without a byte
	}
	o.begin()
	o.sent = o.plan.ans.billed
	if o.plan.toolCall {
		o.delta(content{ToolCalls: summaryTool}, "", 0)
	}
	o.delta(content{}, o.plan.ans.finish, 0)
}

// end writes what comes after the finish reason.
func (o *writer) end() {
	if o.plan.empty {
		return
	}
	if o.plan.usageForm == usageChunk || (o.usage && o.plan.usageForm == usageAsked) {
		ch := o.head
		ch.Usage = o.plan.usageFor(o.sent)
		o.event(marshal(ch))
	}
	o.done()
}

func (o *writer) done() {
	if !o.plan.noDone {
		o.event([]byte("[DONE]"))
	}
}

// fail writes an error object where an event was due.
func (o *writer) fail() {
	o.event(o.failure())
	o.done()
}

// failure is the error object in the place of an answer, or of the rest of it.
func (o *writer) failure() []byte {
	e := newError(http.StatusOK, serverError, "", "upstream_error", "The upstream model failed.")
	if o.plan.errorBare {
		return marshal(errorObject{e})
	}
	ch := o.head
	ch.Error = e
	if at := o.plan.errorAt; at > 0 {
		text := ""
		if !o.stream {
			text = strings.Join(o.plan.ans.pieces[:min(at, len(o.plan.ans.pieces))], "")
		}
		ch.Choices = o.choice(content{Content: &text}, "error")
	}
	return marshal(ch)
}

// body writes a whole answer.
func (o *writer) body() {
	var data []byte
	switch {
	case o.plan.empty:
		return
	case o.plan.errorAt >= 0:
		data = o.failure()
	default:
		data = o.halved(o.completion())
	}
	whole := len(data)
	if o.plan.cutAt > 0 || o.plan.badAt > 0 {
		data = data[:whole*2/3]
	}
	switch {
	case o.plan.abrupt: // promises what does not come
		o.w.Header().Set("Content-Length", strconv.Itoa(whole))
	case !o.plan.gzip && !o.plan.bom && o.plan.lines == 0 && o.plan.cutAt == 0:
		o.w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	}
	// White space is as empty in JSON as a comment is in SSE.
	o.write(bytes.Repeat([]byte("\n"), o.plan.lines))
	if o.plan.bom {
		o.write([]byte("\ufeff"))
	}
	o.write(data)
}

func (o *writer) completion() []byte {
	p := o.plan
	msg := o.content(strings.Join(p.ans.pieces, ""))
	switch {
	case p.toolCall:
		msg = content{ToolCalls: summaryTool}
	case msg.Content == nil && !p.refusal:
		msg.Content = new("")
	}
	ch := o.head
	ch.Choices = o.choice(msg, p.ans.finish)
	ch.Padding = strings.Repeat("x", p.padding)
	if p.usageForm != usageNever {
		ch.Usage = p.usageFor(p.ans.billed)
	}
	return marshal(ch)
}

// summaryTool is the tool call of an answer that is nothing else.
var summaryTool = []toolCall{{ID: "call_lab_1", Type: "function", Function: toolFunction{"save_summary", `{"title":"summary"}`}}}
