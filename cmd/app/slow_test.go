package app_test

import (
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
		head  = "Host: api.leeway\r\nContent-Type: application/json\r\n"
		lines = "Host: api.leeway\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n"
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
		{"a body that nobody reads by drips", "POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n", "a", 31 * time.Second},
		{"a body for no route by drips", "POST /nowhere HTTP/1.1\r\n" + head + "Content-Length: 100000\r\n\r\n", "a", 31 * time.Second},
		{"a chat by drips", "POST /v1/chat/completions HTTP/1.1\r\n" + head + "Content-Length: 100000\r\n\r\n{\"model\":\"", "a", 31 * time.Second},
		{"a line by drips", "POST /v1/jobs/batch HTTP/1.1\r\n" + lines + "\r\n", "1\r\na\r\n", 61 * time.Second},
		{"idle after an answer", "GET /livez HTTP/1.1\r\nHost: api.leeway\r\n\r\n", "", 121 * time.Second},
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

// drip sends a piece each second until nobody takes it any more.
func drip(conn net.Conn, sent, piece string) {
	_, err := io.Copy(conn, strings.NewReader(sent))
	for err == nil && piece != "" {
		time.Sleep(time.Second)
		_, err = fmt.Fprint(conn, piece)
	}
}
