//go:build server

package e2e_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"leeway/broker/client"
	"leeway/rehearsal/proctest"
)

// languages are those of docs/examples.md, by the mark of their blocks.
var languages = []struct{ mark, file string }{
	{"sh", "producer.sh"}, {"python", "main.py"}, {"js", "main.mjs"}, {"go", "main.go"},
}

var fenced = regexp.MustCompile("(?s)\n```([a-z]+)\n(.*?)\n```\n")

// programs are the page's blocks as files: producers and receivers by mark.
func programs(t *testing.T) (producers, receivers map[string]string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "docs", "examples.md"))
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(page), "\n## ")
	if len(parts) != 3 {
		t.Fatalf("%d sections", len(parts))
	}
	take := func(part string, want ...string) map[string]string {
		files, marks := map[string]string{}, []string(nil)
		for _, m := range fenced.FindAllStringSubmatch(part, -1) {
			i := slices.IndexFunc(languages, func(l struct{ mark, file string }) bool { return l.mark == m[1] })
			if i < 0 {
				t.Fatalf("a block of %s", m[1])
			}
			marks = append(marks, m[1])
			files[m[1]] = filepath.Join(t.TempDir(), languages[i].file)
			if err := os.WriteFile(files[m[1]], []byte(m[2]+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(marks, want) {
			t.Fatalf("blocks of %v, want %v", marks, want)
		}
		return files
	}
	return take(parts[1], "sh", "python", "js", "go"), take(parts[2], "python", "js", "go")
}

// command is how a program of a language is run. A Go program is built first,
// inside the module whose dependencies it names.
func command(ctx context.Context, t *testing.T, mark, file string) *exec.Cmd {
	t.Helper()
	switch mark {
	case "sh":
		return exec.CommandContext(ctx, "bash", file)
	case "python":
		return exec.CommandContext(ctx, "python3", file)
	case "js":
		return exec.CommandContext(ctx, "node", file)
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", file+".bin", file)
	build.Dir, build.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return exec.CommandContext(ctx, file+".bin")
}

// receiver is a program of the page that listens for webhooks.
type receiver struct {
	out, err proctest.Capture
	url      string

	mu   sync.Mutex
	last message // that it was sent
}

var portLine = regexp.MustCompile(`(?m)^listening on port (\d+)$`)

// TestExamples runs every program of docs/examples.md against a real
// deployment: each producer meets a refusal that passes, and each receiver is
// told the ends of its jobs.
func TestExamples(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"curl", "python3", "node", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s is not on PATH: make setup installs what the tests need", tool)
		}
	}
	const primed = 4 // unfinished jobs that a producer may have
	producers, receivers := programs(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	// The receivers, behind one address.
	heard := map[string]*receiver{}
	for mark, file := range receivers {
		r := &receiver{}
		heard[mark] = r
		cmd := command(ctx, t, mark, file)
		cmd.Env = append(os.Environ(), "HOOK_SECRET="+hookSecret, "PORT=0")
		cmd.Stdout, cmd.Stderr = &r.out, &r.err
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if t.Failed() {
				t.Logf("the receiver in %s said on stderr:\n%s", mark, proctest.Tail(r.err.String()))
			}
		})
	}
	for mark, r := range heard {
		proctest.Eventually(t, 30*time.Second, mark+" listens", func() error {
			m := portLine.FindStringSubmatch(r.out.String())
			if m == nil {
				return errors.New(r.out.String() + r.err.String())
			}
			r.url = "http://127.0.0.1:" + m[1]
			return nil
		})
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r := heard[strings.Trim(req.URL.Path, "/")]
		to, err := url.Parse(r.url)
		if err != nil {
			t.Error(err)
			return
		}
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.last = message{req.Header.Clone(), body}
		r.mu.Unlock()
		req.Body = io.NopCloser(bytes.NewReader(body))
		httputil.NewSingleHostReverseProxy(to).ServeHTTP(w, req)
	}))
	t.Cleanup(front.Close)

	// A deployment whose producers may have few unfinished jobs.
	s := quick()
	s.PaidSlots, s.PaidMS, s.DeadlineMS = 32, 60_000, 120_000
	var keys, rules strings.Builder
	for _, l := range languages {
		sum := sha256.Sum256([]byte("key-of-" + l.mark))
		fmt.Fprintf(&keys, "    - {name: %s, key_sha256: %s}\n", l.mark, hex.EncodeToString(sum[:]))
		hook := ""
		if heard[l.mark] != nil {
			hook = fmt.Sprintf(", webhook: {url: %q, secret_env: HOOK_SECRET, allow_private: true}", front.URL+"/"+l.mark)
		}
		fmt.Fprintf(&rules, "  %s: {max_in_flight: %d%s}\n", l.mark, primed, hook)
	}
	sum := sha256.Sum256([]byte("key-of-oncall"))
	s.More = fmt.Sprintf("access:\n  producers:\n%s  oncall: [{name: sam, key_sha256: %s}]\nproducers:\n%s", &keys, hex.EncodeToString(sum[:]), &rules)
	d := deploy(t, s)
	d.env = []string{"HOOK_SECRET=" + hookSecret}
	d.startWorker()
	d.startAPI()
	d.ready()
	d.client.Key = "key-of-oncall"

	// Each producer has as many unfinished jobs as it may, until it was refused.
	var held []string
	for _, l := range languages {
		c := client.Client{Base: d.client.Base, HTTP: d.client.HTTP, Key: "key-of-" + l.mark}
		for range primed {
			v, err := c.Submit(ctx, &client.Job{Class: "paid-only", Text: text})
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, v.JobID)
		}
	}
	d.labs["lab-paid"].busy(len(held))
	d.labs["lab-paid"].pace(60)
	var running sync.WaitGroup
	outputs := map[string]*proctest.Capture{}
	for mark, file := range producers {
		out := &proctest.Capture{}
		outputs[mark] = out
		cmd := command(ctx, t, mark, file)
		cmd.Dir = filepath.Dir(file)
		cmd.Env = append(os.Environ(), "LEEWAY_API="+d.client.Base, "LEEWAY_KEY=key-of-"+mark)
		cmd.Stdout, cmd.Stderr = out, out
		running.Go(func() {
			if err := cmd.Run(); err != nil {
				t.Errorf("%s: %v", mark, err)
			}
		})
	}
	proctest.Eventually(t, time.Minute, "each is refused", func() error {
		for mark, out := range outputs {
			if !strings.Contains(out.String(), "refused: reject_rate, again in ") {
				return fmt.Errorf("%s: %s", mark, out)
			}
		}
		return nil
	})
	for _, id := range held {
		if status := d.ask(http.MethodDelete, "/v1/jobs/"+id+"?only=cancel"); status/100 != 2 {
			t.Errorf("cancel: %d", status)
		}
	}
	running.Wait()
	for mark, out := range outputs {
		for _, want := range []string{
			"event: verdict\n", "event: running\n", "event: first_byte\n", "event: outcome\n", "\nusable: ", "doc-1", "doc-2", "doc-3", "\nresults: 3 usable\n",
		} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s printed no %q:\n%s", mark, want, out)
			}
		}
	}

	for mark, r := range heard {
		proctest.Eventually(t, 30*time.Second, mark+" is told of every end", func() error {
			cancelled, usable := strings.Count(r.out.String(), " cancelled\n"), strings.Count(r.out.String(), " usable\n")
			if cancelled != primed || usable != 4 {
				return fmt.Errorf("%d cancelled, %d usable:\n%s", cancelled, usable, r.out.String())
			}
			return nil
		})
		before := r.out.String()
		r.mu.Lock()
		again := r.last
		r.mu.Unlock()
		if status := r.send(t, again, nil); status != http.StatusNoContent {
			t.Errorf("%s answered %d to a message that came twice", mark, status)
		}
		for what, change := range map[string]func(*message){
			"another body":        func(m *message) { m.body = bytes.Replace(m.body, []byte("usable"), []byte("failed"), 1) },
			"another id":          func(m *message) { m.header.Set("webhook-id", "msg_other") },
			"another time":        func(m *message) { m.header.Set("webhook-timestamp", "1700000000") },
			"no signature":        func(m *message) { m.header.Del("webhook-signature") },
			"no time":             func(m *message) { m.header.Del("webhook-timestamp") },
			"a signature of none": func(m *message) { m.header.Set("webhook-signature", "v1, v1,AAAA") },
		} {
			if status := r.send(t, again, change); status != http.StatusUnauthorized {
				t.Errorf("%s answered %d to %s", mark, status, what)
			}
		}
		if r.out.String() != before {
			t.Errorf("%s took more: %s", mark, r.out.String())
		}
	}
}

// send sends a message to the receiver itself, changed.
func (r *receiver) send(t *testing.T, m message, change func(*message)) int {
	t.Helper()
	m.header = m.header.Clone()
	if change != nil {
		change(&m)
	}
	req, err := http.NewRequest(http.MethodPost, r.url, bytes.NewReader(m.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = m.header
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// ask makes a call with the stack's key and returns the status.
func (d *stack) ask(method, path string) int {
	d.t.Helper()
	req, err := http.NewRequest(method, d.client.Base+path, http.NoBody)
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+d.client.Key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}
