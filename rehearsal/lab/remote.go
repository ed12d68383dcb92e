package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// maxControlAnswer bounds what is read of a control endpoint's answer: more than
// the largest log of attempts.
const maxControlAnswer = 1 << 30

// Remote speaks to the control endpoint of a backend in another process.
type Remote struct {
	// URL is the endpoint's, for example http://127.0.0.1:8101/control.
	// Required.
	URL string
	// HTTP makes the calls. Required.
	HTTP *http.Client
}

// SetFault sets a fault, as [Server.SetFault].
func (r *Remote) SetFault(ctx context.Context, f Fault) error {
	return r.call(ctx, http.MethodPut, "/fault", f, nil)
}

// ClearFault makes the backend healthy, as [Server.ClearFault].
func (r *Remote) ClearFault(ctx context.Context) error {
	return r.call(ctx, http.MethodDelete, "/fault", nil, nil)
}

// Fault returns the fault that is set; one without a name is health.
func (r *Remote) Fault(ctx context.Context) (f Fault, err error) {
	return f, r.call(ctx, http.MethodGet, "/fault", nil, &f)
}

// Pace returns the backend's time as it is now.
func (r *Remote) Pace(ctx context.Context) (p Pace, err error) {
	return p, r.call(ctx, http.MethodGet, "/profile", nil, &p)
}

// State returns what the backend is doing now.
func (r *Remote) State(ctx context.Context) (s State, err error) {
	return s, r.call(ctx, http.MethodGet, "/state", nil, &s)
}

// Attempts returns those after a sequence number, oldest first. That some of
// them are forgotten is an error.
func (r *Remote) Attempts(ctx context.Context, since int64) ([]Attempt, error) {
	resp, err := r.open(ctx, http.MethodGet, "/attempts?since="+strconv.FormatInt(since, 10), nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if n := resp.Header.Get(ForgottenHeader); n != "0" {
		return nil, fmt.Errorf("%s attempts are forgotten: give the lab a greater --log", n)
	}
	var out []Attempt
	for dec := json.NewDecoder(io.LimitReader(resp.Body, maxControlAnswer)); ; {
		var a Attempt
		switch err := dec.Decode(&a); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, err
		}
		out = append(out, a)
	}
}

// call makes a request and decodes the answer, unless into is nil.
func (r *Remote) call(ctx context.Context, method, path string, body, into any) error {
	resp, err := r.open(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxControlBody))
	if err != nil || into == nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// open makes a request and returns the response of one that succeeded, whose
// body must be closed.
func (r *Remote) open(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var content io.Reader = http.NoBody
	if body != nil {
		content = bytes.NewReader(marshal(body))
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(r.URL, "/")+path, content)
	if err != nil {
		return nil, err
	}
	resp, err := r.HTTP.Do(req)
	if err != nil || resp.StatusCode/100 == 2 {
		return resp, err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 1024))
	return nil, errors.Join(fmt.Errorf("lab control: %s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(raw)), err)
}
