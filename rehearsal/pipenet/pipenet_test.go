package pipenet

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestHTTPInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Listen()
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(time.Hour)
			_, _ = io.WriteString(w, "late")
		})}
		go func() { _ = srv.Serve(l) }()
		defer srv.Close()
		tr := &http.Transport{DialContext: l.DialContext}
		defer tr.CloseIdleConnections()
		start := time.Now()
		resp, err := (&http.Client{Transport: tr}).Get("http://lab/")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || string(body) != "late" {
			t.Fatalf("body %q, %v", body, err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
		if got := time.Since(start); got != time.Hour {
			t.Errorf("took %v of virtual time, want 1h", got)
		}
	})
}

func TestRefusedAndReopened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Listen()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("second Close: %v", err)
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept: %v", err)
		}
		if _, err := l.DialContext(t.Context(), "tcp", "x"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial: %v", err)
		}
		if _, err := l.Relisten(); err != nil {
			t.Fatal(err)
		}
		go func() {
			if c, err := l.Accept(); err == nil {
				_ = c.Close()
			}
		}()
		c, err := l.DialContext(t.Context(), "tcp", "x")
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	})
}

func TestDialIsBoundedByItsContextAndByClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Listen()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.DialContext(ctx, "tcp", "x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dial nobody accepts: %v", err)
		}
		time.AfterFunc(time.Second, func() { _ = l.Close() })
		if _, err := l.DialContext(t.Context(), "tcp", "x"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial while closing: %v", err)
		}
	})
}

func TestResetIsNotAnOrdinaryClose(t *testing.T) {
	for _, tt := range []struct {
		name   string
		linger int
		want   error
	}{
		{"linger 0 resets", 0, syscall.ECONNRESET},
		{"default is end of file", -1, io.EOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := Listen()
				go func() {
					c, err := l.Accept()
					if err != nil {
						return
					}
					_ = c.(interface{ SetLinger(int) error }).SetLinger(tt.linger)
					_ = c.Close()
				}()
				c, err := l.DialContext(t.Context(), "tcp", "x")
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if _, err := c.Read(make([]byte, 1)); !errors.Is(err, tt.want) {
					t.Errorf("read: %v, want %v", err, tt.want)
				}
			})
		})
	}
}
