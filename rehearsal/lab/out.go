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

// out writes one response, streamed or whole, in the form that its plan asks
// for.
type out struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	to     io.Writer // w, or gz over it
	gz     *gzip.Writer
	plan   *plan
	stream bool
	usage  bool // asked for
	head   chunk
	sent   int   // completion tokens
	began  bool  // the role chunk is out
	err    error // the first one; nothing is written after it

	pending bool // something is written and not flushed
}

func newOut(p *play) *out {
	o := &out{w: p.w, rc: http.NewResponseController(p.w), to: p.w, plan: &p.plan, stream: p.req.stream, usage: p.req.includeUsage}
	o.head = chunk{
		ID: "chatcmpl-" + strings.TrimPrefix(p.rec.a.ID, "req_"), Object: "chat.completion",
		Created: time.Now().Unix(), Model: p.req.model, Deduped: p.plan.ans.deduped,
	}
	h := p.w.Header()
	h.Set("Content-Type", "application/json")
	if o.stream {
		o.head.Object = "chat.completion.chunk"
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
	}
	if p.plan.gzip {
		o.gz = gzip.NewWriter(p.w)
		o.to = o.gz
		if p.plan.gzipTold {
			h.Set("Content-Encoding", "gzip")
		}
	}
	return o
}

// write buffers b.
func (o *out) write(b []byte) {
	if o.err == nil {
		_ = o.rc.SetWriteDeadline(time.Now().Add(writePatience)) // not every writer has one
		_, o.err = o.to.Write(b)
		o.pending = true
	}
}

// flush sends what is buffered, the headers at least, and returns the first
// error there was.
func (o *out) flush() error {
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
func (o *out) close() {
	if o.gz != nil && o.err == nil {
		o.err = o.gz.Close()
	}
}

// comment writes what an SSE reader must pass over.
func (o *out) comment() { o.write([]byte(": keep-alive\n\n")) }

// event writes one event of a stream.
func (o *out) event(data []byte) {
	var b bytes.Buffer
	if o.plan.comments {
		b.WriteString(": keep-alive\n\n")
	}
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

// delta writes a chunk with one choice.
func (o *out) delta(c content, finish string, padding int) {
	ch := o.head
	ch.Choices = []choice{{Delta: &c}}
	if finish != "" {
		ch.Choices[0].FinishReason = &finish
	}
	if padding > 0 {
		ch.Padding = filler(padding)
	}
	switch {
	case o.plan.usageForm == usageCumulative, o.plan.usageForm == usageLast && finish != "":
		ch.Usage = o.plan.usageFor(o.sent)
	case o.usage && o.plan.usageForm == usageAsked:
		ch.Usage = json.RawMessage("null")
	}
	o.event(marshal(ch))
}

// begin writes the role chunk once.
func (o *out) begin() {
	if !o.began {
		o.began = true
		empty := ""
		o.delta(content{Role: "assistant", Content: &empty}, "", 0)
	}
}

// piece writes piece i of the answer.
func (o *out) piece(i int) {
	o.begin()
	o.sent++
	if o.plan.badAt > 0 && i == o.plan.badAt {
		o.event([]byte(`{"id":"` + o.head.ID + `","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"`))
		return
	}
	text := o.plan.ans.pieces[i]
	padding := 0
	if i == min(1, len(o.plan.ans.pieces)-1) {
		padding = o.plan.padding
	}
	o.delta(o.content(text), "", padding)
	if i == 0 && o.plan.lines > 0 {
		block := bytes.Repeat([]byte(": x\n"), 1000)
		for range o.plan.lines / 1000 {
			o.write(block)
		}
		o.write([]byte("\n"))
	}
}

// content puts text where the plan wants it.
func (o *out) content(text string) content {
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

// end writes how a stream ends.
func (o *out) end() {
	if o.plan.empty {
		return // a body without a byte
	}
	o.begin()
	o.sent = o.plan.ans.billed
	if o.plan.toolCall {
		o.delta(content{ToolCalls: []toolCall{newToolCall()}}, "", 0)
	}
	o.delta(content{}, o.plan.ans.finish, 0)
	if o.plan.usageForm == usageChunk || (o.usage && o.plan.usageForm == usageAsked) {
		ch := o.head
		ch.Choices = []choice{}
		ch.Usage = o.plan.usageFor(o.sent)
		o.event(marshal(ch))
	}
	o.done()
}

func (o *out) done() {
	if !o.plan.noDone {
		o.event([]byte("[DONE]"))
	}
}

// fail writes an error object where an event was due.
func (o *out) fail() {
	o.event(o.errorObject())
	o.done()
}

func (o *out) errorObject() []byte {
	if o.plan.errBare {
		return marshal(struct {
			Error *apiError `json:"error"`
		}{midError()})
	}
	ch := o.head
	ch.Choices = []choice{}
	ch.Error = midError()
	if at := o.plan.errorAt; at > 0 {
		finish, text := "error", ""
		if o.stream {
			ch.Choices = []choice{{Delta: &content{Content: &text}, FinishReason: &finish}}
		} else {
			text = strings.Join(o.plan.ans.pieces[:min(at, len(o.plan.ans.pieces))], "")
			ch.Choices = []choice{{Message: &content{Role: "assistant", Content: &text}, FinishReason: &finish}}
		}
	}
	return marshal(ch)
}

// body writes a whole answer.
func (o *out) body() {
	var data []byte
	switch {
	case o.plan.empty:
		return
	case o.plan.errorAt >= 0:
		data = o.errorObject()
	default:
		data = o.completion()
	}
	whole := len(data)
	if o.plan.cutAt > 0 || o.plan.badAt > 0 {
		data = data[:whole*2/3]
	}
	for range o.plan.lines / 1000 {
		o.write(bytes.Repeat([]byte("\n"), 1000)) // white space is as empty in JSON as a comment is in SSE
	}
	if !o.plan.gzip && o.plan.lines == 0 && (o.plan.cutAt == 0 || o.plan.abrupt) {
		n := len(data)
		if o.plan.abrupt {
			n = whole
		}
		o.w.Header().Set("Content-Length", strconv.Itoa(n))
	}
	o.write(data)
}

func (o *out) completion() []byte {
	p := o.plan
	text := strings.Join(p.ans.pieces, "")
	msg := o.content(text)
	msg.Role = "assistant"
	if msg.Content == nil && !p.refusal {
		empty := ""
		msg.Content = &empty
	}
	if p.toolCall {
		msg.Content = nil
		msg.ToolCalls = []toolCall{newToolCall()}
	}
	ch := o.head
	ch.Choices = []choice{{Message: &msg, FinishReason: &p.ans.finish}}
	if p.padding > 0 {
		ch.Padding = filler(p.padding)
	}
	if p.usageForm != usageNever {
		ch.Usage = p.usageFor(p.ans.billed)
	}
	return marshal(ch)
}

func newToolCall() toolCall {
	t := toolCall{ID: "call_lab_1", Type: "function"}
	t.Function.Name, t.Function.Arguments = "save_summary", `{"title":"summary"}`
	return t
}
