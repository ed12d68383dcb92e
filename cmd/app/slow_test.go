package app_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/slackgate"
)

// Clients that send as slowly as they can are cut off, each by the bound of
// what it is slow at, and keep nobody else from the door.
func TestSlowClients(t *testing.T) {
	const (
		head  = "Host: localhost\r\nContent-Type: application/json\r\n"
		lines = "Host: localhost\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n"
	)
	slow := []struct {
		name, sent string
		drip       string // a piece sent each second afterwards; "" sends nothing
		within     time.Duration
	}{
		{"nothing", "", "", 6 * time.Second},
		{"a request line without end", "GET /", "a", 6 * time.Second},
		{"headers without end", "POST /v1/jobs HTTP/1.1\r\n" + head, "X-A: b\r\n", 6 * time.Second},
		{"no body", "POST /v1/jobs HTTP/1.1\r\n" + head + "Content-Length: 100\r\n\r\n", "", 31 * time.Second},
		{"a body by drips", "POST /v1/jobs HTTP/1.1\r\n" + head + "Content-Length: 100000\r\n\r\n{\"text\":\"", "a", 31 * time.Second},
		{"a flag by drips", "PUT /v1/flags/ADMIT_FREE HTTP/1.1\r\n" + head + "Content-Length: 1000\r\n\r\n{\"value\":\"", "a", 31 * time.Second},
		{"a body that nobody reads by drips", "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n", "a", 31 * time.Second},
		{"a body for no route by drips", "POST /nowhere HTTP/1.1\r\n" + head + "Content-Length: 100000\r\n\r\n", "a", 31 * time.Second},
		{"a chat by drips", "POST /v1/chat/completions HTTP/1.1\r\n" + head + "Content-Length: 100000\r\n\r\n{\"model\":\"", "a", 31 * time.Second},
		{"a line by drips", "POST /v1/jobs/batch HTTP/1.1\r\n" + lines + "\r\n", "1\r\na\r\n", 61 * time.Second},
		{"blank lines", "POST /v1/jobs/batch HTTP/1.1\r\n" + lines + "\r\n", "1\r\n\n\r\n", 61 * time.Second},
		{"idle after an answer", "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", "", 121 * time.Second},
	}
	synctest.Test(t, func(t *testing.T) {
		w := start(t, config.Default(), nil)
		dial := w.http.Transport.(*http.Transport).DialContext
		var wg sync.WaitGroup
		for _, tt := range slow {
			conn, err := dial(t.Context(), "tcp", strings.TrimPrefix(w.url, "http://"))
			must(t, err)
			begun := time.Now()
			wg.Go(func() {
				_, _ = io.Copy(io.Discard, conn)
				took := time.Since(begun)
				t.Logf("%s: cut off after %v", tt.name, took)
				if took > tt.within {
					t.Errorf("%s: cut off after %v, the bound is %v", tt.name, took, tt.within)
				}
				must(t, conn.Close())
			})
			wg.Go(func() { drip(conn, tt.sent, tt.drip) })
		}
		time.Sleep(3 * time.Second)
		begun := time.Now()
		if v := w.submit(&client.Job{Text: document}); v.Reason != slackgate.ReasonPoolDown || time.Since(begun) > time.Second {
			t.Errorf("another submission got %+v after %v", v, time.Since(begun))
		}
		wg.Wait()
	})
}

// Clients that take in nothing of what they have asked for are cut off, whatever
// it is.
func TestClientsThatReadNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, config.Default(), nil)
		dial := w.http.Transport.(*http.Transport).DialContext
		var wg sync.WaitGroup
		for _, path := range []string{"/openapi.json", "/livez", "/readyz", "/v1/pools", "/v1/jobs", "/v1/ledgers/spend", "/nowhere"} {
			conn, err := dial(t.Context(), "tcp", strings.TrimPrefix(w.url, "http://"))
			must(t, err)
			wg.Go(func() {
				begun := time.Now()
				_, err := io.Copy(conn, strings.NewReader(strings.Repeat("GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n", 200)))
				_, _ = io.Copy(io.Discard, conn) // returns when it is cut off, or reads for as long as it is answered
				if took := time.Since(begun); took > 61*time.Second || err == nil {
					t.Errorf("%s: %v after %v", path, err, took)
				}
				must(t, conn.Close())
			})
		}
		wg.Wait()
		if errs := w.log.errors(); errs != "" {
			t.Errorf("logged as errors:\n%s", errs)
		}
	})
}

// A client that sends all before it reads, and takes its time, has its whole answer,
// a refusal too.
func TestClientsThatReadAfterwards(t *testing.T) {
	const lines = 5000
	line := `{"text":"` + strings.Repeat("x", 480) + `"}` + "\n"
	for _, tt := range []struct {
		name, path, media string
		status, answers   int
	}{
		{"a batch", "/v1/jobs/batch", "application/x-ndjson", 200, lines},
		{"a batch of another media type", "/v1/jobs/batch", "text/plain", 415, 1},
		{"a body for no route", "/nowhere", "text/plain", 404, 1},
		{"a body that is too large", "/v1/jobs", "application/json", 413, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := start(t, config.Default(), nil)
			dial := w.http.Transport.(*http.Transport).DialContext
			conn, err := dial(t.Context(), "tcp", strings.TrimPrefix(w.url, "http://"))
			must(t, err)
			_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", tt.path, tt.media, lines*len(line))
			must(t, err)
			for range 5 {
				if _, err := io.Copy(conn, strings.NewReader(strings.Repeat(line, lines/5))); err != nil {
					t.Fatalf("%s: %v", tt.name, err)
				}
				if tt.answers > 1 {
					time.Sleep(20 * time.Second)
				}
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			must(t, err)
			answer, err := io.ReadAll(resp.Body)
			must(t, resp.Body.Close())
			if got := bytes.Count(answer, []byte("\n")); err != nil || resp.StatusCode != tt.status || got != tt.answers {
				t.Errorf("%s: status %d, %d answers, %v", tt.name, resp.StatusCode, got, err)
			}
			must(t, conn.Close())
		})
	}
}

// drip sends a piece each second until nobody takes it any more.
func drip(conn net.Conn, sent, piece string) {
	_, err := io.Copy(conn, strings.NewReader(sent))
	for err == nil && piece != "" {
		time.Sleep(time.Second)
		_, err = fmt.Fprint(conn, piece)
	}
}
