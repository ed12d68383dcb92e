package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"leeway/rehearsal/pipenet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// article is long enough for a summary of more than sixty tokens.
var article = strings.Repeat(`A queue hides work that nobody waits for any more. `, 1) +
	`The gate compares the slack that a job still has with the wait it would meet before its first byte. ` +
	`A producer that is refused at once can go elsewhere while there is time. ` +
	`Workers claim the most urgent waiting job, so that a patient batch does not starve a stream of short deadlines. ` +
	`Every attempt opens its row of spend before the backend is called, and settles it after the answer. ` +
	`The ledger of misses never mixes with the ledger of spend. ` +
	`A backend that sends headers and then nothing has not sent a first byte.`

// lab is a backend in a bubble, with a client.
type lab struct {
	*Server
	t       *testing.T
	api     *pipenet.Listener
	client  *http.Client
	control *http.Client
}

// inLab runs f in virtual time beside a serving lab.
func inLab(t *testing.T, cfg Config, f func(l *lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		api, control := pipenet.Listen(), pipenet.Listen()
		ctx, cancel := context.WithCancel(context.Background())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx, api, control) }()
		l := &lab{Server: s, t: t, api: api}
		var transports []*http.Transport
		for _, c := range []struct {
			to *pipenet.Listener
			at **http.Client
		}{{api, &l.client}, {control, &l.control}} {
			tr := &http.Transport{DialContext: c.to.DialContext, DisableCompression: true}
			transports = append(transports, tr)
			*c.at = &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		}
		f(l)
		for _, tr := range transports {
			tr.CloseIdleConnections()
		}
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

// ask is one request of a test.
type ask struct {
	model, text, key, fault, system string
	stream, usage                   bool
	maxTokens                       int
	ctx                             context.Context
}

func (l *lab) request(a ask) *http.Request {
	l.t.Helper()
	if a.model == "" {
		a.model = DefaultModel
	}
	if a.text == "" {
		a.text = article
	}
	if a.ctx == nil {
		a.ctx = l.t.Context()
	}
	body := map[string]any{"model": a.model, "stream": a.stream}
	msgs := []map[string]string{}
	if a.system != "" {
		msgs = append(msgs, map[string]string{"role": "system", "content": a.system})
	}
	body["messages"] = append(msgs, map[string]string{"role": "user", "content": a.text})
	if a.usage {
		body["stream_options"] = map[string]bool{"include_usage": true}
	}
	if a.maxTokens > 0 {
		body["max_tokens"] = a.maxTokens
	}
	raw, err := json.Marshal(body)
	if err != nil {
		l.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(a.ctx, http.MethodPost, "http://lab/v1/chat/completions", bytes.NewReader(raw))
	if err != nil {
		l.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if a.key != "" {
		r.Header.Set("Idempotency-Key", a.key)
	}
	if a.fault != "" {
		r.Header.Set(FaultHeader, a.fault)
	}
	return r
}

// reply is what a client saw, with the virtual times at which it did.
type reply struct {
	status    int
	header    http.Header
	headersAt time.Duration
	firstAt   time.Duration // of the first data line with content; negative: none
	endAt     time.Duration
	raw       []byte
	err       error // of the body
	dialErr   error

	text      string
	reasoning string
	finish    string
	usage     string // the last usage block that is not null
	usages    int
	done      bool
	bad       int // events that are not JSON
	roleFirst bool
}

// send sends a request and reads the whole reply as a plain SSE reader would.
func (l *lab) send(a ask) reply {
	l.t.Helper()
	start := time.Now()
	rep := reply{firstAt: -1}
	resp, err := l.client.Do(l.request(a))
	if err != nil {
		rep.dialErr, rep.endAt = err, time.Since(start)
		return rep
	}
	defer func() { _ = resp.Body.Close() }()
	rep.status, rep.header, rep.headersAt = resp.StatusCode, resp.Header, time.Since(start)
	var raw bytes.Buffer
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		_, rep.err = io.Copy(&raw, resp.Body)
		rep.raw, rep.endAt = raw.Bytes(), time.Since(start)
		rep.take(rep.raw, start)
		return rep
	}
	in := bufio.NewReader(io.TeeReader(resp.Body, &raw))
	var data []string
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			if err != io.EOF {
				rep.err = err
			}
			break
		}
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "" && data != nil:
			rep.take([]byte(strings.Join(data, "\n")), start)
			data = nil
		case strings.HasPrefix(line, "data:"):
			data = append(data, strings.TrimPrefix(line[5:], " "))
		}
	}
	rep.raw, rep.endAt = raw.Bytes(), time.Since(start)
	return rep
}

// take reads one event, or a whole body.
func (r *reply) take(data []byte, start time.Time) {
	if string(data) == "[DONE]" {
		r.done = true
		return
	}
	var c struct {
		Choices []struct {
			Delta, Message struct {
				Role, Content, Reasoning string
				ReasoningContent         string `json:"reasoning_content"`
			}
			FinishReason *string `json:"finish_reason"`
		}
		Usage json.RawMessage
	}
	if err := json.Unmarshal(data, &c); err != nil {
		r.bad++
		return
	}
	if len(c.Usage) > 0 && string(c.Usage) != "null" {
		r.usage = string(c.Usage)
		r.usages++
	}
	for _, ch := range c.Choices {
		if r.text == "" && ch.Delta.Role == "assistant" && ch.Delta.Content == "" {
			r.roleFirst = true
		}
		if text := ch.Delta.Content + ch.Message.Content; text != "" {
			if r.firstAt < 0 {
				r.firstAt = time.Since(start)
			}
			r.text += text
		}
		r.reasoning += ch.Delta.Reasoning + ch.Delta.ReasoningContent + ch.Message.Reasoning + ch.Message.ReasoningContent
		if ch.FinishReason != nil {
			r.finish = *ch.FinishReason
		}
	}
}

func mustProfile(t *testing.T, s string) Profile {
	t.Helper()
	p, err := ParseProfile(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mustTail(t *testing.T, s string) Tail {
	t.Helper()
	tail, err := ParseTail(s)
	if err != nil {
		t.Fatal(err)
	}
	return tail
}
