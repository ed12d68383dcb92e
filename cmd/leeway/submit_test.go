package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/unicode/norm"

	"leeway/broker/config"
	"leeway/rehearsal/stage"
)

// files writes files and returns their folder.
func files(t *testing.T, contents map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range contents {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestDocuments(t *testing.T) {
	dir := files(t, map[string]string{
		"a.txt": "A", "sub/b.md": "B", ".hidden/c.txt": "C", ".d.txt": "D",
		"e.jsonl":  "{\"text\":\"E1\",\"custom_id\":\"e-1\",\"class\":\"nightly\",\"deadline_ms\":5}\n\n\"E3\"\n",
		"f.NDJSON": `{"text":"F","deadline_at":"2030-01-31T02:14:00Z"}`,
	})
	if err := os.Symlink(dir, filepath.Join(dir, ".link")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		args []string
		in   string
		json bool
		want string
	}{
		{"a link to a folder", []string{filepath.Join(dir, ".link")}, "", false, ".link/a.txt=A e-1=E1 .link/e.jsonl:3=E3 .link/f.NDJSON:1=F .link/sub/b.md=B"},
		{"a folder", []string{dir}, "", false, "a.txt=A e-1=E1 e.jsonl:3=E3 f.NDJSON:1=F sub/b.md=B"},
		{"a pattern", []string{filepath.Join(dir, "*.txt")}, "", false, "a.txt=A .d.txt=D"},
		{"two files", []string{filepath.Join(dir, "sub/b.md"), filepath.Join(dir, "a.txt")}, "", false, "sub/b.md=B a.txt=A"},
		{"standard input", []string{"-"}, "two\nlines", false, "-=two\nlines"},
		{"standard input as JSONL", []string{"-"}, "\"x\"\n{\"text\":\"y\"}", true, "-:1=x -:2=y"},
		{"nothing on standard input", []string{"-"}, "", true, ""},
	} {
		var got []string
		in := input{jsonl: tt.json, yield: func(d document) error {
			got = append(got, strings.TrimPrefix(d.name, dir+"/")+"="+d.job.Text)
			return nil
		}, fail: func(name string, err error) { t.Errorf("%s: %s: %v", tt.name, name, err) }, leave: func(string, string) {}}
		paths, err := expand(tt.args)
		if err == nil {
			err = in.read(t.Context(), paths, strings.NewReader(tt.in))
		}
		want := tt.want
		if tt.name == "a pattern" {
			slices.Sort(got)
			want = ".d.txt=D a.txt=A"
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %q, %v", tt.name, got, err)
		}
	}
	if paths, err := expand([]string{dir, filepath.Join(dir, "nope*")}); err == nil || !strings.Contains(err.Error(), "no file fits") {
		t.Errorf("a pattern that nothing fits: %q, %v", paths, err)
	}
	stopped := errors.New("stopped")
	in := input{jsonl: true, yield: func(document) error { return stopped }}
	if err := in.read(t.Context(), []string{"-"}, strings.NewReader("\"x\"\n\"y\"")); !errors.Is(err, stopped) {
		t.Errorf("the end of reading: %v", err)
	}
}

func TestParseUntil(t *testing.T) {
	now := time.Date(2026, 3, 4, 23, 30, 0, 0, time.UTC)
	for s, want := range map[string]string{
		"": "0001-01-01T00:00:00Z", "2h": "2026-03-05T01:30:00Z", "06:00": "2026-03-05T06:00:00Z", "23:31": "2026-03-04T23:31:00Z",
		"23:30": "2026-03-05T23:30:00Z", "2026-03-05T04:00:00+01:00": "2026-03-05T03:00:00Z",
	} {
		if got, err := parseUntil(s, now); err != nil || got.UTC().Format(time.RFC3339) != want {
			t.Errorf("%q: %v, %v; want %s", s, got, err, want)
		}
	}
	for _, s := range []string{"-2h", "0s", "25:00", "tomorrow", "2026-03-04T23:30:00Z"} {
		if got, err := parseUntil(s, now); err == nil {
			t.Errorf("%q: %v", s, got)
		}
	}
}

// What cannot be submitted has a line that names it, and all else is submitted.
func TestWhatIsLeftOutIsSaid(t *testing.T) {
	dir := files(t, map[string]string{
		"a.txt": "one", "utf16.txt": "\xff\xfeo\x00", "utf16be.jsonl": "\xfe\xff\x00{", "latin1.txt": "gr\xfc\xdfe", "bom.txt": "\ufefftwo", "zero.bin": "PK\x03\x04\x00",
		"doc.pdf": "%PDF-1.4 of letters", "large.txt": strings.Repeat("x", maxDocument+1), "locked.txt": "x", "shut/in.txt": "x", ".hidden": "x", ".git/x": "x",
		"l.jsonl": "\ufeff{\"text\":\"three\"}\n{\"txet\":\"x\"}\nnonsense\n\"\xfc\"\n\"" + strings.Repeat("x", maxDocument) + "\"\n" +
			`{"text":"x"} {"text":"y"}` + "\n" + `{"text":"\ud800"}` + "\n" + `{"text":"four"}`,
		"z.txt": "five",
	})
	t.Chdir(dir)
	for _, err := range []error{
		os.Symlink("a.txt", "link.txt"), syscall.Mkfifo("fifo", 0o600), os.Chmod("locked.txt", 0), os.Chmod("shut", 0),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	defer func() { _ = os.Chmod("shut", 0o700) }()
	var texts []string
	srv := httptest.NewServer(&gateOf{view: good, offer: func(_ int, text string) (int, string) {
		texts = append(texts, text)
		return 202, yes
	}})
	defer srv.Close()
	var out, errs bytes.Buffer
	exit := run([]string{"submit", "--api", srv.URL, ".", "--out=out"}, &out, &errs)
	want := []string{"one", "two", "three", "four", "five"}
	if os.Getuid() == 0 { // nothing is shut to root
		want = append(want, "x", "x")
	} else if !strings.Contains(out.String(), "locked.txt: permission denied") || !strings.Contains(out.String(), "shut: permission denied") {
		t.Errorf("it does not say what may not be read:\n%s", &out)
	}
	slices.Sort(texts)
	slices.Sort(want)
	if diff := cmp.Diff(want, texts); exit != exitFailed || diff != "" {
		t.Errorf("exit %d, submitted (-want +got):\n%s%s%s", exit, diff, &out, &errs)
	}
	for _, says := range []string{
		"utf16.txt: is UTF-16", "utf16be.jsonl: is UTF-16", "latin1.txt: is not UTF-8 at byte 2", "zero.bin: is binary", "doc.pdf: is a PDF", "large.txt: is larger",
		"l.jsonl:2: want a JSON object", "l.jsonl:3: want a JSON object", "l.jsonl:4: is not UTF-8", "l.jsonl:5: the line is longer", "l.jsonl:6: want", "l.jsonl:7: want",
		"link.txt: is a link", "fifo: is no regular file", "left out .hidden: is hidden", "left out .git: is hidden", "left out out: is where answers go",
	} {
		if !strings.Contains(out.String(), says) {
			t.Errorf("it does not say %q:\n%s", says, &out)
		}
	}
	if got := strings.Count(read(t, "out/results.jsonl"), `"error"`); got < 14 {
		t.Errorf("the results name %d that could not be submitted:\n%s", got, &out)
	}
}

// Files in another encoding are read in it, and one that is not in it is refused.
func TestSubmitReadsOtherEncodings(t *testing.T) {
	const text = "Größe 5 µ"
	in := func(e encoding.Encoding, s string) string {
		s, err := e.NewEncoder().String(s)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	dir := files(t, map[string]string{
		"latin1.txt": in(charmap.ISO8859_1, text), "latin1.jsonl": in(charmap.ISO8859_1, strconv.Quote(text)), "marked.txt": "\ufeff" + text,
		"utf16.txt": in(unicode.UTF16(unicode.BigEndian, unicode.UseBOM), text), "utf16.jsonl": in(unicode.UTF16(unicode.LittleEndian, unicode.UseBOM), "\n"+strconv.Quote(text)),
		"odd.bin": "\xff\xfex\x00y", "nul.bin": "a\x00",
	})
	var texts []string
	srv := httptest.NewServer(&gateOf{view: good, offer: func(_ int, text string) (int, string) {
		texts = append(texts, text)
		return 202, yes
	}})
	defer srv.Close()
	var out, errs bytes.Buffer
	exit := run([]string{"submit", "--api", srv.URL, dir, "--encoding=latin1"}, &out, &errs)
	if diff := cmp.Diff(slices.Repeat([]string{text}, 5), texts); exit != exitFailed || diff != "" {
		t.Errorf("exit %d, submitted (-want +got):\n%s%s%s", exit, diff, &out, &errs)
	}
	if s := out.String(); !strings.Contains(s, "odd.bin: is not") || !strings.Contains(s, "nul.bin: is binary") {
		t.Errorf("what is in no encoding is not named:\n%s", s)
	}
	if exit := run([]string{"submit", "--encoding=klingon", dir}, &out, &errs); exit != exitFailed || !strings.Contains(errs.String(), "--encoding") {
		t.Errorf("exit %d, %s", exit, &errs)
	}
}

// Whatever documents are called, each answer is in a file of its own, also where
// a file system does not tell capitals apart, and what is there already stays.
func TestEveryAnswerHasItsFile(t *testing.T) {
	long := strings.Repeat("x", 240)
	dir := files(t, map[string]string{
		"n/a_b.txt": "one", "n/a/b.txt": "two", "n/A_b.txt": "three", "n/ä.txt": "four", "n/a\u0308.txt": "five", "n/a%2Fb.txt": "six",
		"n/\xff.txt": "seven", "n/\xfe.txt": "eight", "n/" + long + "1": "nine", "n/" + long + "2": "ten",
		"1.jsonl": `{"text":"eleven","custom_id":"same"}` + "\n" + `{"text":"twelve","custom_id":"same"}`,
		"2.jsonl": `{"text":"thirteen","custom_id":"same"}` + "\n" + `{"text":"fourteen","custom_id":"n/a_b.txt"}` + "\n" + `{"text":"fifteen","custom_id":"results.jsonl"}`,
	})
	t.Chdir(dir)
	srv := httptest.NewServer(&gateOf{view: good, offer: func(int, string) (int, string) { return 202, yes }})
	defer srv.Close()
	var out, errs bytes.Buffer
	args := []string{"submit", "--api", srv.URL, "n", "1.jsonl", "2.jsonl", "n/A_b.txt"}
	const mine = "o/n+a_b.txt.answer.txt"
	if err := os.Mkdir("o", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mine, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if exit := run(append(args, "--out=o"), &out, &errs); exit != 0 {
		t.Errorf("exit %d\n%s%s", exit, &out, &errs)
	}
	answers, err := filepath.Glob("o/*.answer.txt")
	if err != nil {
		t.Fatal(err)
	}
	folded := map[string]bool{}
	for _, a := range answers {
		folded[strings.ToLower(norm.NFC.String(a))] = true
	}
	if len(answers) != 17 || len(folded) != len(answers) || read(t, mine) != "mine" {
		t.Errorf("%d files, %d without regard to capitals, of 16 answers and one from before; that one is %q now:\n%s",
			len(answers), len(folded), read(t, mine), strings.Join(answers, "\n"))
	}
	names := map[string]bool{}
	for line := range strings.Lines(read(t, "o/results.jsonl")) {
		var r result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if names[r.Name] {
			t.Errorf("two results are called %s", r.Name)
		}
		names[r.Name] = true
		if got := read(t, filepath.Join("o", r.File)); got != "The answer.\n" {
			t.Errorf("%s: the answer in %s is %q", r.Name, r.File, got)
		}
	}
	if len(names) != 16 {
		t.Errorf("%d results of 16", len(names))
	}
	before := read(t, "o/results.jsonl")
	for _, to := range []string{"o", "o/results.jsonl"} {
		errs.Reset()
		if exit := run(append(args, "--out", to), &out, &errs); exit != exitFailed || !strings.Contains(errs.String(), "results.jsonl") || read(t, "o/results.jsonl") != before {
			t.Errorf("--out=%s again: exit %d, %s", to, exit, &errs)
		}
	}
}

func TestFileName(t *testing.T) {
	for name, want := range map[string]string{
		"a.txt": "a.txt", "sub/a.txt": "sub+a.txt", "../../etc/passwd": "%2E.+..+etc+passwd", "/x/y": "+x+y",
		"-": "stdin", "stdin": "stdin", "e.jsonl:3": "e.jsonl%3A3", "..": "%2E.", "a+b%~": "a%2Bb%25%7E", "ä \xff\x1b": "ä %FF%1B",
		strings.Repeat("x", 240): strings.Repeat("x", 240),
	} {
		if got := fileName(name, ""); got != want+".answer.txt" {
			t.Errorf("%s: %s", name, got)
		}
	}
	for _, name := range []string{strings.Repeat("x", 300), strings.Repeat("ä", 150), strings.Repeat("/", 255)} {
		got := fileName(name, "018f-1")
		if len(got) > maxFileName || !utf8.ValidString(got) || !strings.HasSuffix(got, "~018f-1.answer.txt") {
			t.Errorf("%s: %d bytes, %s", name, len(got), got)
		}
	}
}

// gateOf is an API whose answers a test decides: what it says to each line, 0
// for hanging up there.
type gateOf struct {
	mu    sync.Mutex // guards what follows
	asked []string   // custom_ids of the lines
	keys  []string   // idempotency keys and paths of the requests
	ended []string   // custom_ids of the jobs
	reads int        // requests for answers and for how far the batch is
	offer func(n int, text string) (status int, body string)
	view  string
}

func (g *gateOf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.Method != http.MethodPost {
		g.read(w, r)
		return
	}
	g.keys = append(g.keys, r.URL.Path+" "+r.Header.Get("Idempotency-Key"))
	w.Header().Set("X-Leeway-Batch-Id", "b")
	rc := http.NewResponseController(w)
	_ = rc.EnableFullDuplex()
	lines := json.NewDecoder(r.Body)
	for n := 1; ; n++ {
		var job struct {
			Text     string `json:"text"`
			CustomID string `json:"custom_id"`
		}
		g.mu.Unlock() // answers are read meanwhile
		err := lines.Decode(&job)
		g.mu.Lock()
		if err != nil {
			return
		}
		g.asked = append(g.asked, job.CustomID)
		status, body := g.offer(len(g.asked), job.Text)
		switch status {
		case 0:
			panic(http.ErrAbortHandler)
		case 202:
			g.ended = append(g.ended, job.CustomID)
			body = strings.TrimPrefix(body, "{")
		default:
			again := ""
			if strings.Contains(body, "no_slack") {
				again = `"retry_after_ms":1000,`
			}
			body = again + `"error":` + body + "}"
		}
		fmt.Fprintf(w, `{"line":%d,"custom_id":%q,"status":%d,%s`+"\n", n, job.CustomID, status, body)
		_ = rc.Flush()
	}
}

// read answers for a batch whose jobs end at once.
func (g *gateOf) read(w http.ResponseWriter, r *http.Request) {
	g.reads++
	if !strings.HasSuffix(r.URL.Path, "/results") {
		_, _ = io.WriteString(w, `{"batch_id":"b","status":"done"}`)
		return
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	for i := from; i < len(g.ended); i++ {
		fmt.Fprintf(w, `{"line":1,"custom_id":%q,"next_cursor":%d,"job":%s}`+"\n", g.ended[i], i+1, strings.Replace(g.view, `"j"`, fmt.Sprintf(`"j%d"`, i), 1))
	}
}

const (
	yes     = `{"job_id":"j","path":"paid","reason":"paid","slack_ms":1,"need_ms":{},"queue_age_ms":{}}`
	no      = `{"type":"about:blank","title":"","status":429,"detail":"no","reason":"reject_no_slack","verdict":{"path":"reject","reason":"reject_no_slack"}}`
	never   = `{"type":"about:blank","title":"","status":429,"detail":"no","reason":"reject_deadline","verdict":{"path":"reject","reason":"reject_deadline"}}`
	broken  = `{"type":"about:blank","title":"","status":400,"detail":"text: is empty","reason":"invalid_field","field":"text"}`
	good    = `{"job_id":"j","state":"done","path":"paid","outcome":"usable","answer":"The answer."}`
	late    = `{"job_id":"j","state":"done","path":"paid","outcome":"late"}`
	down    = `{"job_id":"j","state":"done","path":"paid","outcome":"failed","detail":"not this text"}`
	refused = http.StatusTooManyRequests
)

func TestSubmitExit(t *testing.T) {
	dir := files(t, map[string]string{"1.txt": "one", "2.txt": "two"})
	for _, tt := range []struct {
		name  string
		offer func(n int, text string) (int, string)
		view  string
		args  []string
		exit  int
		asked int
		says  []string
	}{
		{"all usable", func(int, string) (int, string) { return 202, yes }, good, nil, 0, 2, []string{"2 usable, 0 missed, 0 refused", "The answer.", "<- usable"}},
		{"missed", func(int, string) (int, string) { return 202, yes }, late, nil, exitMissed, 2, []string{"2 missed", "<- late"}},
		{"turned down", func(int, string) (int, string) { return 202, yes }, down, nil, exitMissed, 2, []string{"<- failed", "the provider's words: not this text"}},
		{"one refused", func(_ int, text string) (int, string) {
			if text == "one" {
				return refused, no
			}
			return 202, yes
		}, good, nil, exitRefused, 2, []string{"1 usable", "1 refused", "--retry-rejected-until"}},
		{"refused for good", func(int, string) (int, string) { return refused, never }, good, []string{"--retry-rejected-until=1h"}, exitRefused, 2, []string{"2 refused"}},
		{"refused at first", func(n int, _ string) (int, string) {
			if n <= 2 {
				return refused, no
			}
			return 202, yes
		}, good, []string{"--retry-rejected-until=1h"}, 0, 4, []string{"2 usable, 0 missed, 0 refused"}},
		{"no time to wait", func(int, string) (int, string) { return refused, no }, good, []string{"--retry-rejected-until=100ms"}, exitRefused, 2, []string{"2 refused"}},
		{"bad input", func(int, string) (int, string) { return 400, broken }, good, nil, exitFailed, 2, []string{"2 failed", "correct what is named"}},
		{"a lost reply", func(n int, _ string) (int, string) {
			if n == 2 {
				return 0, ""
			}
			return 202, yes
		}, good, nil, 0, 3, []string{"2 usable"}},
		{"one at a time", func(int, string) (int, string) { return 202, yes }, good, []string{"--parallel=1"}, 0, 2, []string{"2 usable"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := &gateOf{offer: tt.offer, view: tt.view}
			srv := httptest.NewServer(g)
			defer srv.Close()
			var out, errs bytes.Buffer
			exit := run(append([]string{"submit", "--api", srv.URL, dir}, tt.args...), &out, &errs)
			if exit != tt.exit || len(g.asked) != tt.asked {
				t.Errorf("exit %d after %d submissions; want %d after %d\n%s%s", exit, len(g.asked), tt.exit, tt.asked, &out, &errs)
			}
			for _, s := range tt.says {
				if !strings.Contains(out.String(), s) {
					t.Errorf("it does not say %q:\n%s", s, &out)
				}
			}
			slices.Sort(g.asked)
			if keys := slices.Compact(slices.Clone(g.asked)); len(keys) != 2 || keys[0] == "" {
				t.Errorf("names %q: want one a document, however often it is offered", g.asked)
			}
			for i, k := range g.keys {
				if (i == 0) != strings.HasPrefix(k, "/v1/jobs/batch cli-") || i > 0 && k != "/v1/batches/b " {
					t.Errorf("request %d went to %s", i, k)
				}
			}
		})
	}
}

// While documents wait to be offered again, a batch in which all that was
// admitted has ended is not asked after without a pause.
func TestSubmitIsQuietUntilTheNextOffer(t *testing.T) {
	g := &gateOf{view: good, offer: func(n int, _ string) (int, string) {
		if n == 2 {
			return refused, no // again after a second
		}
		return 202, yes
	}}
	srv := httptest.NewServer(g)
	defer srv.Close()
	var out, errs bytes.Buffer
	dir := files(t, map[string]string{"1.txt": "one", "2.txt": "two"})
	if exit := run([]string{"submit", "--api", srv.URL, "--retry-rejected-until=1h", dir}, &out, &errs); exit != 0 {
		t.Errorf("exit %d\n%s%s", exit, &out, &errs)
	}
	if g.reads > 12 {
		t.Errorf("%d requests for answers in about a second", g.reads)
	}
}

func TestEveryErrorSaysWhatNext(t *testing.T) {
	for _, tt := range []struct {
		status int
		body   string
		args   []string
		says   string
	}{
		{401, `{"status":401,"reason":"unauthorized"}`, []string{"jobs", "show", "x"}, "LEEWAY_KEY"},
		{403, `{"status":403,"reason":"forbidden"}`, []string{"flags", "audit"}, "on-call key"},
		{404, `{"status":404,"reason":"not_found"}`, []string{"jobs", "show", "x"}, "kept for a day"},
		{409, `{"status":409,"reason":"out_of_order","detail":"the job has ended"}`, []string{"jobs", "cancel", "x"}, "leeway jobs show"},
		{503, `{"status":503,"reason":"gate_unavailable"}`, []string{"watch"}, "/readyz"},
		{500, `{"status":500,"reason":"internal"}`, []string{"jobs", "delete", "x"}, "log says more"},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(tt.status)
			_, _ = io.WriteString(w, tt.body)
		}))
		var out, errs bytes.Buffer
		if exit := run(append(tt.args, "--api", srv.URL), &out, &errs); exit != 1 || !strings.Contains(errs.String(), tt.says) {
			t.Errorf("%d: exit %d, %s", tt.status, exit, &errs)
		}
		srv.Close()
	}
	var out, errs bytes.Buffer
	for says, args := range map[string][]string{
		"--api or LEEWAY_API": {"jobs", "show", "x", "--api", "http://127.0.0.1:1"},
		"--api says":          {"drill", "declared", "--api", "http://127.0.0.1:1"},
		"one at --api is":     {"drill", "declared", "--url", "http://127.0.0.1:1", "--no-recheck"}, // its name of before
	} {
		errs.Reset()
		if exit := run(args, &out, &errs); exit != 1 || !strings.Contains(errs.String(), says) {
			t.Errorf("%s, nobody there: exit %d, %s", args[0], exit, &errs)
		}
	}
	for _, args := range [][]string{{"submit", t.TempDir()}, {"submit", "/nowhere"}, {"submit", "--parallel=-1", "x"}, {"submit", "--deadline=1us", "x"}, {"submit", "--retry-rejected-until=soon", "x"}} {
		errs.Reset()
		if exit := run(args, &out, &errs); exit != 1 || errs.Len() == 0 {
			t.Errorf("%v: exit %d, %s", args, exit, &errs)
		}
	}
}

// The producer's commands against the whole of Leeway.
func TestProducersCommands(t *testing.T) {
	cfg := config.Default()
	cfg.Listen, cfg.MetricsListen, cfg.WorkerMetricsListen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	cfg.Pools.Paid = config.Pool{Limit: 8, FirstByteP95MS: 100, HoldP95MS: 100}
	cfg.Pools.Free.Limit = 0
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	e, err := stage.Start(stage.Declared(cfg, nil))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	ask := func(want int, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if exit := run(append(args, "--api", e.URL), &out, &errs); exit != want {
			t.Errorf("%v: exit %d; want %d\n%s%s", args, exit, want, &out, &errs)
		}
		return out.String() + errs.String()
	}
	const text = "A refusal costs milliseconds. A late answer costs a generation that nobody reads."
	dir := files(t, map[string]string{"a.txt": text, "b.jsonl": fmt.Sprintf("{\"text\":%q,\"custom_id\":\"b-1\"}\n%q\n", text, text)})
	to := filepath.Join(t.TempDir(), "out")
	said := ask(0, "submit", dir, "--deadline=30s", "--class=summary", "--out="+to)
	if !strings.Contains(said, "3 offered, 3 admitted, 3 usable") || strings.Contains(said, "costs milliseconds") {
		t.Errorf("submit said\n%s", said)
	}
	answers, _ := filepath.Glob(filepath.Join(to, "*.answer.txt"))
	lines, err := os.ReadFile(filepath.Join(to, "results.jsonl"))
	if err != nil || len(answers) != 3 || bytes.Count(lines, []byte("\n")) != 3 || !bytes.Contains(lines, []byte(`"name":"b-1"`)) {
		t.Errorf("%d answers, results %s, %v", len(answers), lines, err)
	}
	if said := ask(0, "submit", filepath.Join(dir, "a.txt"), "--out=-"); !strings.HasPrefix(said, `{"name":"`) {
		t.Errorf("results on standard output: %s", said)
	}
	id := regexp.MustCompile(`"job_id":"([^"]+)"`).FindSubmatch(lines)
	if id == nil {
		t.Fatalf("no job in %s", lines)
	}
	job := string(id[1])
	if said := ask(0, "jobs", "show", job); !strings.Contains(said, "outcome usable") || !strings.Contains(said, "answer, kept until") {
		t.Errorf("show: %s", said)
	}
	ask(1, "jobs", "cancel", job)
	ask(0, "jobs", "delete", job)
	if said := ask(0, "jobs", "show", job); !strings.Contains(said, "its answer was deleted") {
		t.Errorf("show: %s", said)
	}
	if said := ask(0, "jobs", "show", "--json", job); !json.Valid([]byte(said)) {
		t.Errorf("show --json: %s", said)
	}
	if said := ask(0, "jobs"); !strings.Contains(said, job) || strings.Count(said, "usable") != 4 {
		t.Errorf("jobs: %s", said)
	}
	if said := ask(0, "jobs", "--state=waiting"); !strings.Contains(said, "no such jobs") {
		t.Errorf("jobs --state=waiting: %s", said)
	}
	said = ask(0, "batches")
	row := regexp.MustCompile(`(?m)^(\S+)\s.*done\s+3\s+3\s+0\s+0\s+0$`).FindStringSubmatch(said)
	if row == nil {
		t.Fatalf("batches: %s", said)
	}
	if said := ask(0, "batches", "show", row[1], "--wait=10s"); !strings.Contains(said, "3 lines: 3 admitted, 0 refused, 0 invalid") || !strings.Contains(said, "outcomes: 3 usable; 0 pending") {
		t.Errorf("batches show: %s", said)
	}
	if said := ask(0, "batches", "lines", row[1], "--verdict=admitted"); !strings.Contains(said, "b-1: paid, ") || strings.Count(said, ": usable") != 3 {
		t.Errorf("batches lines: %s", said)
	}
	if said := ask(0, "batches", "results", row[1]); strings.Count(said, `"outcome":"usable"`) != 3 {
		t.Errorf("batches results: %s", said)
	}
	again := filepath.Join(t.TempDir(), "again")
	ask(0, "batches", "results", "--follow", "--out="+again, row[1])
	if answers, _ := filepath.Glob(filepath.Join(again, "*.answer.txt")); len(answers) != 2 { // one was deleted
		t.Errorf("%d answers", len(answers))
	}
	if said := ask(0, "batches", "cancel", row[1]); !strings.Contains(said, "0 waiting jobs cancelled, 0 running ones will be cut, 3 had ended") {
		t.Errorf("batches cancel: %s", said)
	}
	if said := ask(1, "batches", "show", "nobody"); !strings.Contains(said, "list what there is") {
		t.Errorf("no such batch: %s", said)
	}
	if said := ask(0, "watch", "--count=2", "--every=100ms"); strings.Count(said, "paid: open") != 2 || strings.Contains(said, "\x1b") {
		t.Errorf("watch: %s", said)
	}
	if said := ask(exitRefused, "submit", filepath.Join(dir, "a.txt"), "--deadline=1s"); !strings.Contains(said, "waiting does not help") {
		t.Errorf("a deadline within the reserve: %s", said)
	}
}
