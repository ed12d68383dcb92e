// Package webhook tells producers the ends of their jobs: signed as the
// Standard Webhooks specification has it, at targets that the operator has
// registered, again with a growing pause until they are taken or a day is
// over.
package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"code.dny.dev/ssrf"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"leeway/broker"
	"leeway/broker/config"
)

// Bounds of one attempt.
const (
	// Timeout is how long an attempt may take, from the look-up of the name to
	// the last byte of the response.
	Timeout = 10 * time.Second
	// dialTimeout is how long connecting may take of it.
	dialTimeout = 5 * time.Second
	// maxResponse is how much of a response's body is read, and thrown away.
	maxResponse = 64 << 10
	// maxResponseHead bounds its head.
	maxResponseHead = 64 << 10
)

// Errors of an attempt.
var (
	// ErrRefused is a target in a network that it may not be in.
	ErrRefused = errors.New("the target is in a private network, and allow_private is not set")
	// ErrRedirect is a target that pointed elsewhere: it is not followed.
	ErrRedirect = errors.New("the target redirects, and redirects are not followed")
)

// StatusError is a response that is no 2xx.
type StatusError struct {
	Status int
	// RetryAfter is what the target asked for; 0: nothing.
	RetryAfter time.Duration
}

func (e *StatusError) Error() string { return "the target answered " + strconv.Itoa(e.Status) }

// private are the networks that allow_private opens. Link-local addresses,
// where clouds keep their metadata, stay closed.
var private = []ssrf.Option{
	ssrf.WithAllowedV4Prefixes(
		netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"),
		netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("100.64.0.0/10"),
	),
	ssrf.WithAllowedV6Prefixes(netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("fc00::/7")),
}

// Target is where one producer's ends are told. Close it when it is no longer
// used.
type Target struct {
	url     string
	signers []*standardwebhooks.Webhook
	client  *http.Client
}

// New reads a webhook's secrets and returns its target. at names the webhook
// in errors. transport carries the calls in place of the target's own, which
// looks at each address before it connects; it is for tests that have no
// network, and nil otherwise.
func New(at string, w *config.Webhook, transport http.RoundTripper) (*Target, error) {
	secrets, err := w.Secrets(at)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(w.URL)
	if err != nil {
		return nil, broker.Fieldf(at+".url", "must be an https URL")
	}
	guard := ssrf.New(append([]ssrf.Option{ssrf.WithAnyPort()}, allowed(w)...)...)
	// A name is looked at when it is dialled; an address can be refused now.
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
		if guard.SafeAddr(ip) != nil {
			return nil, broker.Fieldf(at+".url", "%v", ErrRefused)
		}
	}
	t := &Target{url: w.URL}
	for _, s := range secrets {
		signer, err := standardwebhooks.NewWebhook(s)
		if err != nil {
			return nil, broker.Fieldf(at, "a secret cannot be read")
		}
		t.signers = append(t.signers, signer)
	}
	if transport == nil {
		transport = &http.Transport{
			// No proxy of the environment: the address that was looked at is the
			// one that is called.
			Proxy:                  nil,
			DialContext:            (&net.Dialer{Timeout: dialTimeout, Control: guard.Safe}).DialContext,
			TLSHandshakeTimeout:    dialTimeout,
			MaxIdleConnsPerHost:    MostAtOnce,
			IdleConnTimeout:        time.Minute,
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxResponseHead,
			ForceAttemptHTTP2:      true,
		}
	}
	t.client = &http.Client{
		Transport:     transport,
		Timeout:       Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return t, nil
}

func allowed(w *config.Webhook) []ssrf.Option {
	if w.AllowPrivate {
		return private
	}
	return nil
}

// Close ends connections that are kept for later.
func (t *Target) Close() { t.client.CloseIdleConnections() }

// Tell makes one attempt. id stays the same over all attempts at one message;
// now is the store's clock. nil: the target has taken it.
func (t *Target) Tell(ctx context.Context, id string, now time.Time, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url, bytes.NewReader(body))
	if err != nil {
		return withoutURL(err)
	}
	signatures := make([]string, len(t.signers))
	for i, s := range t.signers {
		if signatures[i], err = s.Sign(id, now, body); err != nil {
			return err
		}
	}
	// The headers are spelt as the specification has them.
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "Leeway")
	req.Header.Set(standardwebhooks.HeaderWebhookID, id)
	req.Header.Set(standardwebhooks.HeaderWebhookTimestamp, timestamp(now))
	req.Header.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	resp, err := t.client.Do(req)
	if err != nil {
		return withoutURL(err)
	}
	defer func() { _ = resp.Body.Close() }()
	// What is left unread closes the connection; the status says it all.
	_, _ = io.CopyN(io.Discard, resp.Body, maxResponse)
	switch resp.StatusCode / 100 {
	case 2:
		return nil
	case 3:
		return fmt.Errorf("%w (%d)", ErrRedirect, resp.StatusCode)
	}
	return &StatusError{Status: resp.StatusCode, RetryAfter: retryAfter(resp.Header)}
}

// retryAfter reads the header's seconds; a date is not looked at.
func retryAfter(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || n < 0 {
		return 0
	}
	return min(time.Duration(min(n, 24*3600))*time.Second, maxPause)
}

// withoutURL is what went wrong without the URL, which may hold a token.
func withoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	if errors.Is(err, ssrf.ErrProhibitedIP) || errors.Is(err, ssrf.ErrProhibitedNetwork) {
		return ErrRefused
	}
	return err
}

// Targets are the targets by producer.
type Targets map[string]*Target

// NewTargets makes the targets that a configuration names.
func NewTargets(cfg *config.Config, transport http.RoundTripper) (Targets, error) {
	out := Targets{}
	for _, name := range slices.Sorted(maps.Keys(cfg.Producers)) {
		if w := cfg.Producers[name].Webhook; w != nil {
			t, err := New("producers."+name+".webhook", w, transport)
			if err != nil {
				return nil, err
			}
			out[name] = t
		}
	}
	return out, nil
}

// Close closes all of them.
func (t Targets) Close() {
	for _, one := range t {
		one.Close()
	}
}
