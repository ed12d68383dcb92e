package webhook

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"go.uber.org/goleak"

	"leeway/broker"
	"leeway/broker/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	secret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	oldSecret = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)

// receiver is a target over TCP on loopback.
func receiver(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func target(t *testing.T, url string, private bool, secrets ...string) *Target {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(strings.Join(secrets, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := New("webhook", &config.Webhook{URL: url, SecretFile: file, AllowPrivate: private}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// What is sent is what the library of the specification takes, under each of
// the secrets that sign, and under no other.
func TestSignatureVerifies(t *testing.T) {
	var got http.Header
	var body []byte
	url := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Clone()
		body, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusNoContent)
	})
	event := []byte(`{"type":"job.ended"}`)
	if err := target(t, url+"/hook?token=x", true, secret, oldSecret).Tell(t.Context(), "msg_1", time.Now(), event); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{secret, oldSecret} {
		wh, err := standardwebhooks.NewWebhook(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := wh.Verify(body, got); err != nil {
			t.Errorf("%s: %v", s, err)
		}
		if wh.Verify(append(body, ' '), got) == nil {
			t.Error("another body verifies")
		}
	}
	other, err := standardwebhooks.NewWebhook("whsec_BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB")
	if err != nil {
		t.Fatal(err)
	}
	if other.Verify(body, got) == nil {
		t.Error("another secret verifies")
	}
	if string(body) != string(event) || got.Get("webhook-id") != "msg_1" || got.Get("Content-Type") != "application/json" {
		t.Errorf("%s with %v", body, got)
	}
}

// A private address is refused when it is connected to, whatever the name was,
// and nothing arrives there.
func TestPrivateTargetRefused(t *testing.T) {
	var calls atomic.Int64
	at := receiver(t, func(http.ResponseWriter, *http.Request) { calls.Add(1) })
	_, port, err := net.SplitHostPort(strings.TrimPrefix(at, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	err = target(t, "https://localhost:"+port+"/?token=hunter2", false, secret).Tell(t.Context(), "msg_1", time.Now(), nil)
	if !errors.Is(err, ErrRefused) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a name of this machine: %v", err)
	}
	if calls.Load() != 0 {
		t.Errorf("%d calls arrived", calls.Load())
	}
	// Allowed, the same name is called.
	if err := target(t, "http://localhost:"+port, true, secret).Tell(t.Context(), "msg_1", time.Now(), nil); err != nil || calls.Load() != 1 {
		t.Errorf("%v after %d calls", err, calls.Load())
	}
}

// An address in the configuration is refused when it is read; where clouds keep
// their metadata, whatever is allowed.
func TestAddressRefusedAtOnce(t *testing.T) {
	t.Setenv("HOOK_SECRET", secret)
	for _, c := range []struct {
		host           string
		public, opened bool // refused without allow_private, with it
	}{
		{"127.0.0.1", true, false},
		{"10.1.2.3", true, false},
		{"172.16.0.1", true, false},
		{"172.32.0.1", false, false},
		{"192.168.1.1", true, false},
		{"100.64.0.1", true, false},
		{"169.254.169.254", true, true},
		{"0.0.0.0", true, true},
		{"224.0.0.1", true, true},
		{"[::1]", true, false},
		{"[fd00::1]", true, false},
		{"[fe80::1]", true, true},
		{"[::ffff:10.0.0.1]", true, true},
		{"[2001:db8::1]", true, true},
		{"[2606:4700::1111]", false, false},
		{"9.9.9.9", false, false},
	} {
		for private, want := range map[bool]bool{false: c.public, true: c.opened} {
			w, err := New("producers.p.webhook", &config.Webhook{URL: "https://" + c.host + "/", SecretEnv: "HOOK_SECRET", AllowPrivate: private}, nil)
			if (err != nil) != want {
				t.Errorf("%s, allow_private %v: %v", c.host, private, err)
			}
			if f, ok := errors.AsType[*broker.FieldError](err); err != nil && (!ok || f.Field != "producers.p.webhook.url") {
				t.Errorf("%s: the error names no field: %v", c.host, err)
			}
			if w != nil {
				w.Close()
			}
		}
	}
}

// A redirect is a failure, wherever it points, and is not followed.
func TestRedirectNotFollowed(t *testing.T) {
	var elsewhere atomic.Int64
	private := receiver(t, func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) })
	for _, status := range []int{301, 302, 303, 307, 308} {
		at := receiver(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, private, status) })
		err := target(t, at, true, secret).Tell(t.Context(), "msg_1", time.Now(), []byte("{}"))
		if !errors.Is(err, ErrRedirect) {
			t.Errorf("%d: %v", status, err)
		}
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

// A response's body is read up to a bound and thrown away, its status judged.
func TestResponses(t *testing.T) {
	for status, want := range map[int]int{200: 0, 201: 0, 204: 0, 299: 0, 400: 400, 404: 404, 410: 410, 429: 429, 500: 500, 503: 503} {
		at := receiver(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(status)
			for range 64 { // 64 MiB, were they read
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		})
		err := target(t, at, true, secret).Tell(t.Context(), "msg_1", time.Now(), []byte("{}"))
		got, _ := errors.AsType[*StatusError](err)
		switch {
		case want == 0 && err != nil, want != 0 && (got == nil || got.Status != want || got.RetryAfter != 7*time.Second):
			t.Errorf("%d: %v", status, err)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"": 0, "0": 0, "30": 30 * time.Second, "-1": 0, "soon": 0, "1e3": 0, "86400": maxPause, "99999999999999999999": 0,
		"Wed, 21 Oct 2030 07:28:00 GMT": 0,
	} {
		if got := retryAfter(http.Header{"Retry-After": {in}}); got != want {
			t.Errorf("%q: %v, want %v", in, got, want)
		}
	}
}

// No error shows the URL: it may hold a token.
func TestErrorsShowNoURL(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := l.Addr().String()
	l.Close()
	err = target(t, "http://"+gone+"/hunter2", true, secret).Tell(t.Context(), "msg_1", time.Now(), nil)
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v", err)
	}
	if _, ok := errors.AsType[*url.Error](err); ok {
		t.Error("the URL is in the chain")
	}
}

// Pauses double from five seconds to ten minutes, each a fifth up or down.
func TestPause(t *testing.T) {
	for attempt, want := range map[int64]time.Duration{
		1: 5 * time.Second, 2: 10 * time.Second, 3: 20 * time.Second, 7: 320 * time.Second, 8: maxPause, 9: maxPause, 1 << 40: maxPause,
	} {
		lo, hi := time.Duration(float64(want)*0.8), time.Duration(float64(want)*1.2)
		differs := false
		for range 100 {
			d := pause(attempt)
			if d < lo || d > hi {
				t.Errorf("after attempt %d: %v, want %v to %v", attempt, d, lo, hi)
			}
			differs = differs || d != pause(attempt)
		}
		if !differs {
			t.Errorf("after attempt %d: no jitter", attempt)
		}
	}
}
