//go:build server

package e2e_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"leeway/rehearsal/proctest"
)

// TestSecretsNowhere plants a secret in every place that takes one, runs jobs,
// refusals, wrong keys, a backend that refuses its key and a Redis that refuses
// its password, all at the most talkative log level, and looks for the secrets
// in everything that comes out: logs, answers and metrics.
func TestSecretsNowhere(t *testing.T) {
	t.Parallel()
	secrets := map[string]string{}
	plant := func(name string) string {
		secrets[name] = "planted-" + name + "-?f7Q" // with a character that URLs escape
		return secrets[name]
	}
	producer, oncall, wrong := plant("producer"), plant("oncall"), plant("wrong")
	backendKey, header, redisKey, wrongRedis := plant("backend"), plant("header"), plant("redis"), plant("wrongredis")

	s := quick()
	s.DeadlineMS = 20_000
	d := deploy(t, s, "--appendonly", "no", "--requirepass", redisKey)
	raw, err := os.ReadFile(d.file)
	if err != nil {
		t.Fatal(err)
	}
	hash := func(key string) string {
		sum := sha256.Sum256([]byte(key))
		return hex.EncodeToString(sum[:])
	}
	file := strings.Replace(string(raw), "model: lab-paid\n", "model: lab-paid\n        key_env: PAID_KEY\n        headers: {X-Account: "+fmt.Sprintf("%q", header)+"}\n", 1)
	file += fmt.Sprintf("access:\n  producers: [{name: nightly, key_sha256: %s}]\n  oncall: [{name: night-desk, key_sha256: %s}]\n", hash(producer), hash(oncall))
	if err := os.WriteFile(d.file, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	redisURL := func(password string) string {
		return "redis://:" + url.QueryEscape(password) + "@" + d.redis.Addr() + "/0"
	}
	d.env = []string{"REDIS_URL=" + redisURL(redisKey), "PAID_KEY=" + backendKey, "LEEWAY_LOG_LEVEL=debug"}
	worker := d.startWorker()
	api := d.startAPI()
	api.outage, worker.outage = true, true
	d.ready()

	var said strings.Builder // all that was answered
	ask := func(key, method, path, body string, header ...string) response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, d.client.Base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+key)
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var out strings.Builder
		if err := resp.Header.Write(&out); err != nil {
			t.Fatal(err)
		}
		body2 := make([]byte, 1<<20)
		n, _ := resp.Body.Read(body2)
		fmt.Fprintf(&said, "%s %s: %d %s %s\n", method, path, resp.StatusCode, out.String(), body2[:n])
		return response{status: resp.StatusCode, body: body2[:n]}
	}
	everything := func() {
		t.Helper()
		for _, key := range []string{producer, oncall, wrong} {
			for _, path := range []string{
				"/v1/jobs", "/v1/batches", "/v1/gate", "/v1/pools", "/v1/budgets", "/v1/flags", "/v1/audit", "/v1/ledgers/spend",
				"/v1/ledgers/misses", "/v1/ledgers/check", "/v1/models", "/readyz", "/livez", "/nowhere",
			} {
				ask(key, http.MethodGet, path, "")
			}
			ask(key, http.MethodPost, "/v1/jobs", `{"text": 7}`)
			ask(key, http.MethodPut, "/v1/flags/ADMIT_FREE", `{"value": "1", "reason": "drill"}`)
		}
	}
	run := func(fault string) {
		t.Helper()
		d.labs["lab-paid"].fault(fault, 0)
		r := ask(producer, http.MethodPost, "/v1/jobs", `{"class": "paid-only", "text": "Something to sum up."}`, "Idempotency-Key", "k-"+fault)
		if r.status != http.StatusAccepted {
			t.Fatalf("with %q: %d %s", fault, r.status, r.body)
		}
		d.client.Key = producer
		v, err := d.client.Wait(context.Background(), between(string(r.body), `"job_id":"`, `"`))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&said, "%+v\n", v)
	}
	run("")
	everything()
	run("auth.401") // its message repeats nothing, but other services' do
	for p, pg := range d.metrics() {
		fmt.Fprintf(&said, "%s: %s\n", p.name, pg.text)
	}
	d.redis.Kill()
	everything()
	d.redis.Run()
	d.ready()

	// A process with the wrong password lives, is not ready and says why.
	d.env = []string{"REDIS_URL=" + redisURL(wrongRedis), "LEEWAY_LOG_LEVEL=debug", "PAID_KEY=" + backendKey}
	stranger := d.startAPI()
	stranger.outage = true
	proctest.Eventually(t, 10*time.Second, "the wrong password is named", func() error {
		if r := ask(oncall, http.MethodGet, "/readyz", ""); r.status != http.StatusServiceUnavailable || !strings.Contains(string(r.body), "credentials") {
			return fmt.Errorf("%d %s", r.status, r.body)
		}
		return nil
	})
	everything()
	proctest.Eventually(t, 10*time.Second, "the log says it too", func() error {
		if !strings.Contains(stranger.Out.String(), "credentials") {
			return errors.New("not yet")
		}
		return nil
	})
	// What does not even start says why, too.
	bad := exec.Command(bin+"/api", "--config", d.file)
	bad.Env = append(os.Environ(), "REDIS_URL=redis://:"+redisKey+"@[::1")
	out, err := bad.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || len(out) == 0 {
		t.Errorf("a URL that is none: %v %s", err, out)
	}
	said.Write(out)

	for _, p := range []*process{api, worker, stranger} {
		p.stop()
		if n := strings.Count(p.Out.String(), "\n"); n < 2 {
			t.Errorf("%s printed %d lines: %s", p.name, n, p.Out.String())
		}
		said.WriteString(p.Out.String() + p.Err.String())
	}
	all := said.String()
	for name, secret := range secrets {
		for form, text := range map[string]string{
			"as it is": secret, "escaped": url.QueryEscape(secret), "as a hash": hash(secret),
			"in base64": base64.StdEncoding.EncodeToString([]byte(secret)), "its middle": secret[4 : len(secret)-4],
		} {
			if at := strings.Index(all, text); at >= 0 {
				t.Errorf("the %s secret came out %s: ...%s...", name, form, all[max(0, at-200):min(len(all), at+100)])
			}
		}
	}
}

// between is what stands between two marks.
func between(s, from, to string) string {
	_, s, _ = strings.Cut(s, from)
	s, _, _ = strings.Cut(s, to)
	return s
}
