package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/hinshun/vt10x"
)

// screen is a terminal of 80 columns: a pty, and what a person would see.
type screen struct {
	t     *testing.T
	tty   *os.File
	rows  int
	mu    sync.Mutex // guards raw
	raw   bytes.Buffer
	shown vt10x.Terminal
	done  chan struct{}
}

func newScreen(t *testing.T, cols, rows int) *screen {
	t.Helper()
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := pty.Setsize(ptmx, &pty.Winsize{Cols: uint16(cols), Rows: uint16(rows)}); err != nil {
		t.Fatal(err)
	}
	s := &screen{t: t, tty: tty, rows: rows, shown: vt10x.New(vt10x.WithSize(cols, rows)), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		buf := make([]byte, 4096)
		for {
			n, err := ptmx.Read(buf)
			s.mu.Lock()
			s.raw.Write(buf[:n])
			s.mu.Unlock()
			_, _ = s.shown.Write(buf[:n])
			if err != nil { // EIO once the other end is closed
				return
			}
		}
	}()
	t.Cleanup(func() {
		tty.Close()
		<-s.done
		ptmx.Close()
	})
	return s
}

// lines are what the screen shows, without empty lines at its end.
func (s *screen) lines() []string {
	var out []string
	for l := range strings.SplitSeq(s.shown.String(), "\n") {
		out = append(out, strings.TrimRight(l, " "))
	}
	for len(out) > 0 && out[len(out)-1] == "" {
		out = out[:len(out)-1]
	}
	return out
}

// until waits for what the screen shows.
func (s *screen) until(what string, cond func(lines []string) bool) {
	s.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !cond(s.lines()); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: the screen shows\n%s", what, strings.Join(s.lines(), "\n"))
		}
	}
}

var barLine = regexp.MustCompile(`^\[#*\.*\] \d+ of \d+: `)

// bars is how many lines of the screen show the progress.
func bars(lines []string) (n int) {
	for _, l := range lines {
		if barLine.MatchString(l) {
			n++
		}
	}
	return n
}

// On a terminal the progress is one line, the last, however long the lines
// above it are; it is gone at the end. Nothing that comes with a name or an
// answer controls the terminal.
func TestSubmitOnATerminal(t *testing.T) {
	const hostile = "\x1b[2Jerased \u009b31m red \x07 bell \rback"
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	var g *gateOf
	g = &gateOf{
		offer: func(n int, _ string) (int, string) {
			if n == 7 {
				g.mu.Unlock() // answers are read meanwhile
				<-hold
				g.mu.Lock()
			}
			return 202, yes
		},
		view: fmt.Sprintf(`{"job_id":"j","state":"done","path":"paid","outcome":"usable","answer":%q}`, ""),
	}
	g.view = strings.Replace(g.view, `"answer":""`, `"answer":"\u001b[2Jerased \u009b31m red \u0007 bell \rback "`, 1)
	srv := httptest.NewServer(g)
	defer srv.Close()
	defer release()
	documents := map[string]string{}
	for i := range 8 {
		documents[fmt.Sprintf("%d-%s.txt", i, strings.Repeat("a long name ", 10))] = "text"
	}
	s := newScreen(t, 80, 60)
	exit := make(chan int, 1)
	go func() { exit <- run([]string{"submit", "--api", srv.URL, files(t, documents)}, s.tty, s.tty) }()
	s.until("six are under way", func(l []string) bool {
		return len(l) > 0 && strings.Contains(l[len(l)-1], "6 of 8: 6 usable, 0 missed, 0 refused, 0 failed")
	})
	if l := s.lines(); bars(l) != 1 || !strings.HasPrefix(l[len(l)-1], "[###############.....] ") {
		t.Errorf("the screen shows\n%s", strings.Join(l, "\n"))
	}
	release()
	if code := <-exit; code != 0 {
		t.Errorf("exit %d", code)
	}
	const last = "8 offered, 8 admitted, 8 usable, 0 missed, 0 refused, 0 failed"
	s.until("the end", func(l []string) bool { return len(l) > 0 && l[len(l)-1] == last })
	l := s.lines()
	if bars(l) != 0 {
		t.Errorf("progress is left on the screen:\n%s", strings.Join(l, "\n"))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes.Contains(s.raw.Bytes(), []byte(hostile[:5])) || bytes.ContainsAny(s.raw.Bytes(), "\x07") {
		t.Error("an answer controls the terminal")
	}
	if s.shown.Cursor().X != 0 {
		t.Errorf("the cursor stands in column %d", s.shown.Cursor().X)
	}
}

// A terminal narrower than the progress shows as much as it can, in one line.
func TestSubmitOnANarrowTerminal(t *testing.T) {
	g := &gateOf{offer: func(int, string) (int, string) { return 202, yes }, view: late}
	srv := httptest.NewServer(g)
	defer srv.Close()
	documents := map[string]string{}
	for i := range 12 {
		documents[fmt.Sprint(i)] = "text"
	}
	s := newScreen(t, 40, 200)
	if code := run([]string{"submit", "--api", srv.URL, files(t, documents)}, s.tty, s.tty); code != exitMissed {
		t.Errorf("exit %d", code)
	}
	s.until("the end", func(l []string) bool { return len(l) > 0 && strings.HasSuffix(l[len(l)-1], "refused, 0 failed") })
	if l := s.lines(); bars(l) != 0 || strings.Contains(strings.Join(l, "\n"), "[#") {
		t.Errorf("progress is left on the screen:\n%s", strings.Join(l, "\n"))
	}
}

// leeway watch draws in place, stays through an API that is away and says so,
// and shows no more than is there.
func TestWatchOnATerminal(t *testing.T) {
	var mu sync.Mutex
	status, backends := http.StatusOK, 2
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.WriteHeader(status)
		if status != http.StatusOK {
			return
		}
		list := make([]string, backends)
		for i := range list {
			list[i] = fmt.Sprintf(`{"backend":"lab-%d","path":"paid","worker":"w","state":"closed","max_inflight":2}`, i)
		}
		_, _ = io.WriteString(w, `{"now_ms":1893456000000,"pools":{"paid":{"state":"open"},"free":{"state":"open"}},"backends":[`+strings.Join(list, ",")+`]}`)
	}))
	defer srv.Close()
	set := func(code, n int) {
		mu.Lock()
		defer mu.Unlock()
		status, backends = code, n
	}
	s := newScreen(t, 60, 20)
	_, _ = s.tty.WriteString("a line of before\r\n")
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	exit := make(chan error, 1)
	watch := watchCmd{apiFlags: apiFlags{API: srv.URL}, Every: 100 * time.Millisecond}
	go func() { exit <- watch.Run(ctx, s.tty) }()
	count := func(l []string, word string) int { return strings.Count(strings.Join(l, "\n"), word) }
	s.until("both backends", func(l []string) bool { return count(l, "lab-") == 2 && strings.HasPrefix(l[0], "2030-01-01T00:00:00Z") })
	for _, l := range s.lines() {
		if len(l) > 60 {
			t.Errorf("a line wraps: %q", l)
		}
	}
	if n := len(s.lines()); n != 9 {
		t.Errorf("%d lines:\n%s", n, strings.Join(s.lines(), "\n"))
	}
	set(http.StatusOK, 1)
	s.until("one backend", func(l []string) bool { return count(l, "lab-") == 1 })
	set(http.StatusInternalServerError, 1)
	s.until("the API is away", func(l []string) bool { return strings.HasPrefix(l[0], "not answered: ") })
	set(http.StatusOK, 2)
	s.until("it is back", func(l []string) bool { return count(l, "lab-") == 2 && count(l, "not answered") == 0 })
	interrupt()
	if err := <-exit; err != nil {
		t.Error(err)
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain":             "plain",
		"two\nlines\tand":   "two\nlines\tand",
		"Zürich 東京 😀":       "Zürich 東京 😀",
		"\x1b[31mred\x1b[m": "\ufffd[31mred\ufffd[m",
		"a\rb\x00c\x7fd":    "a\ufffdb\ufffdc\ufffdd",
		"\u009b2J":          "\ufffd2J",
	} {
		if got := printable(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
