package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"leeway/broker"
	"leeway/broker/wire"
)

type line struct {
	Line   int           `json:"line"`
	Status int           `json:"status"`
	JobID  string        `json:"job_id"`
	Path   string        `json:"path"`
	Error  *wire.Problem `json:"error"`
}

func (a *api) batch(body io.Reader, header ...string) (out []line) {
	a.t.Helper()
	w := a.do(context.Background(), http.MethodPost, "/v1/jobs/batch", body, append(header, "Content-Type", ndJSON)...)
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != ndJSON {
		a.t.Fatalf("batch: %d %s", w.Code, w.Body)
	}
	for l := range bytes.Lines(w.Body.Bytes()) {
		var v line
		if err := json.Unmarshal(l, &v); err != nil {
			a.t.Fatalf("verdict line %q: %v", l, err)
		}
		out = append(out, v)
	}
	return out
}

// what a batch came to, one word a line.
func words(lines []line) string {
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "%d:%d", l.Line, l.Status)
		if l.Error != nil {
			fmt.Fprintf(&b, "/%s/%s", l.Error.Reason, l.Error.Field)
		}
		b.WriteByte(' ')
	}
	return strings.TrimSpace(b.String())
}

func TestBatchKeepsItsGoodLines(t *testing.T) {
	const good = `{"text":"x","deadline_ms":600000}`
	for _, tt := range []struct {
		name, body, want string
	}{
		{"empty", "", ""},
		{"one without newline", good, "1:202"},
		{"bad among good", good + "\n{nonsense\n" + good + "\n", "1:202 2:400/invalid_json/body 3:202"},
		{"each its own error", `{"text":""}` + "\n" + `{"txt":1}` + "\n" + `{"text":"x","deadline_ms":1}` + "\n" + good,
			"1:400/invalid_field/text 2:400/invalid_field/txt 3:429/reject_deadline/ 4:202"},
		{"blank lines count", "\n \r\n" + good + "\r\n\n" + good + "\n", "3:202 5:202"},
		{"byte order marks before lines", "\ufeff" + good + "\n\ufeff\n\ufeff " + good + "\n" + good + "\ufeff", "1:202 3:202 4:400/invalid_json/body"}, //nolint:dupword // so it is
		{"two documents in a line", good + good + "\n" + good, "1:400/invalid_json/body 2:202"},
		{"too long", good + "\n" + strings.Repeat("x", 70_000) + "\n" + good, "1:202 2:400/invalid_field/body 3:202"},
		{"too long and last", good + "\n" + strings.Repeat("x", 200_000), "1:202 2:400/invalid_field/body"},
		{"more lines than allowed", strings.Repeat(good+"\n", 7), "1:202 2:202 3:202 4:202 5:202 6:413/too_large/"},
		{"too long beyond what is allowed", strings.Repeat(good+"\n", 5) + strings.Repeat("x", 200_000) + "\n" + good, "1:202 2:202 3:202 4:202 5:202 6:413/too_large/"},
		{"exactly as many as allowed", strings.Repeat(good+"\n", 5), "1:202 2:202 3:202 4:202 5:202"},
		{"empty tail", strings.Repeat(good+"\n", 5) + "", "1:202 2:202 3:202 4:202 5:202"},
	} {
		inAPI(t, "limits: {text_bytes: 100, batch_lines: 5}", func(a *api) {
			if got := words(a.batch(strings.NewReader(tt.body))); got != tt.want {
				t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
			}
		})
	}
}

func TestLongBatchInOrder(t *testing.T) {
	const n = 300 // more than twice the window
	inAPI(t, "", func(a *api) {
		var b strings.Builder
		for i := range n {
			if i == 150 {
				b.WriteString("{\n")
				continue
			}
			fmt.Fprintf(&b, `{"text":"x","deadline_ms":%d}`+"\n", 1+i%2*599_999)
		}
		lines := a.batch(strings.NewReader(b.String()))
		if len(lines) != n {
			t.Fatalf("%d lines", len(lines))
		}
		seen := map[string]bool{}
		for i, l := range lines {
			want := []int{429, 202}[i%2]
			if i == 150 {
				want = 400
			}
			if l.Line != i+1 || l.Status != want || (want == 202) != (l.JobID != "") || seen[l.JobID] && l.JobID != "" {
				t.Errorf("line %d: %+v", i+1, l)
			}
			seen[l.JobID] = true
		}
	})
}

// A line that is no submission has the name that it gave itself, where that can
// be read: in its answer, and in the list of the batch.
func TestBadLineKeepsItsName(t *testing.T) {
	inAPI(t, "", func(a *api) {
		for _, tt := range []struct{ name, line, want string }{
			{"unknown field before", `{"txt":"x","custom_id":"a"}`, "a"},
			{"unknown field after", `{"custom_id":"b","txt":"x"}`, "b"},
			{"wrong type", `{"custom_id":"c","text":1}`, "c"},
			{"wrong type before", `{"text":1,"custom_id":"d"}`, "d"},
			{"a text of nothing", `{"text":" ","custom_id":"e"}`, "e"},
			{"cut off", `{"custom_id":"f","text":"x`, "f"},
			{"named twice", `{"custom_id":"g","text":"x","text":"y"}`, "g"},
			{"cut off before", `{"text":"x`, ""},
			{"a number", `{"custom_id":7,"text":"x"}`, ""},
			{"too long", `{"text":1,"custom_id":"` + strings.Repeat("x", wire.MaxProducerBytes+1) + `"}`, ""},
			{"no object", `["custom_id"]`, ""},
		} {
			s := a.sendLines("/v1/jobs/batch", []string{tt.line})
			listed := a.pages(s.id, 2, "")
			if l := s.lines[0]; l.Status != 400 || l.CustomID != tt.want || len(listed) != 1 || listed[0].CustomID != tt.want || listed[0].Status != 400 {
				t.Errorf("%s: %+v, listed %+v", tt.name, l, listed)
			}
		}
		// It unmakes nothing: the job of that name stays.
		s := a.sendLines("/v1/jobs/batch", []string{`{"text":"x","custom_id":"a"}`, `{"txt":"x","custom_id":"a"}`})
		if l := a.pages(s.id, 2, ""); !slices.Equal(s.statuses(), []int{202, 400}) || len(l) != 1 || l[0].Status != 202 || l[0].CustomID != "a" {
			t.Errorf("%v, listed %+v", s.statuses(), l)
		}
	})
}

// A producer that goes in the middle of a line has not submitted it; the lines
// before it stand.
func TestTornBatch(t *testing.T) {
	inAPI(t, "", func(a *api) {
		body := io.MultiReader(strings.NewReader("{\"text\":\"a\"}\n{\"text\":\"b\"}"), broken{})
		if got := words(a.batch(body)); got != "1:202" {
			t.Errorf("%s", got)
		}
		// Gone while it reads: what was offered is decided and has its line in
		// the log or its record.
		ctx, cancel := context.WithCancel(context.Background())
		body = io.MultiReader(strings.NewReader("{\"text\":\"c\"}\n"), leaving{cancel})
		before := len(a.admittedJobs())
		w := a.do(ctx, http.MethodPost, "/v1/jobs/batch", body, "Content-Type", ndJSON)
		if w.Code != 200 || len(a.admittedJobs()) != before+1 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// leaving is a body whose producer goes before its end.
type leaving struct{ cancel context.CancelFunc }

func (l leaving) Read([]byte) (int, error) {
	l.cancel()
	return 0, io.ErrUnexpectedEOF
}

func (a *api) admittedJobs() []*broker.Job {
	a.t.Helper()
	jobs, _, err := a.store.RecentJobs(context.Background(), "", true, "", 1000)
	a.must(err)
	return jobs
}

func TestReadLine(t *testing.T) {
	long := strings.Repeat("y", 100)
	for _, tt := range []struct {
		in   string
		want []string // "!" for a line too long
	}{
		{"", []string{""}},
		{"a", []string{"a"}},
		{"a\n", []string{"a\n", ""}},
		{"123456789\n", []string{"123456789\n", ""}}, // the limit, with its newline
		{"1234567890\nb", []string{"!", "b"}},
		{"1234567890", []string{"1234567890"}},
		{"12345678901", []string{"!", ""}},
		{long + "\nok\n" + long, []string{"!", "ok\n", "!", ""}},
	} {
		r := bufio.NewReaderSize(strings.NewReader(tt.in), 16)
		for i, want := range tt.want {
			got, err := readLine(r, 10, free)
			if errors.Is(err, errLineTooLong) {
				got = []byte("!")
			} else if (err != nil) != (i == len(tt.want)-1) || err != nil && !errors.Is(err, io.EOF) {
				t.Errorf("%.20q line %d: %v", tt.in, i, err)
			}
			if string(got) != want {
				t.Errorf("%.20q line %d: %q, want %q", tt.in, i, got, want)
			}
		}
	}
}

// A line that is longer than the reader's buffer is put together from pieces, and
// those before and after it are whole in it.
func TestReadLineBeyondTheBuffer(t *testing.T) {
	long := strings.Repeat("0123456789", 5) + "\n"
	r := bufio.NewReaderSize(strings.NewReader("a\n"+long+"b"), 16)
	for _, want := range []string{"a\n", long, "b"} {
		got, err := readLine(r, 100, free)
		if string(got) != want || err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("%q, want %q: %v", got, want, err)
		}
	}
}

// free is memory without bounds.
func free(int) error { return nil }

func newLineReader(in []byte) *bufio.Reader { return bufio.NewReaderSize(bytes.NewReader(in), 16) }
