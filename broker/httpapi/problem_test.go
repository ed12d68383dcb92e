package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/wire"
	"leeway/slackgate"
)

// A verdict names the pools that were asked under need_ms, and every pool under
// queue_age_ms, in the order of their names.
func TestVerdictOnTheWire(t *testing.T) {
	for name, tt := range map[string]struct {
		v          broker.Verdict
		wire, need string
	}{
		"admitted": {
			broker.Verdict{
				JobID: "j", DeadlineAtMS: 9, ReserveMS: 2000,
				Result: slackgate.Result{Path: slackgate.Paid, Reason: slackgate.ReasonPaid, SlackMS: 5, NeedMS: pools(1200, 0), QueueAgeMS: pools(7, 0)},
			},
			`{"job_id":"j","path":"paid","reason":"paid","slack_ms":5,"need_ms":{"paid":1200},"predicted_wait_ms":0,"queue_age_ms":{"free":0,"paid":7},"reserve_ms":2000,"deadline_at_ms":9}`,
			"paid 1200",
		},
		"refused by both pools": {
			broker.Verdict{
				JobID:  "j",
				Result: slackgate.Result{Reason: slackgate.ReasonNoSlack, SlackMS: 5, NeedMS: pools(1200, 4000), RetryAfterMS: 3},
			},
			`{"job_id":"","path":"reject","reason":"reject_no_slack","slack_ms":5,"need_ms":{"free":4000,"paid":1200},"predicted_wait_ms":0,"queue_age_ms":{"free":0,"paid":0},"reserve_ms":0,"retry_after_ms":3}`,
			"paid 1200, free 4000",
		},
		"refused without asking a pool": {
			broker.Verdict{Result: slackgate.Result{Reason: slackgate.ReasonClosed, NeedMS: pools(slackgate.Unbounded, 0)}},
			`{"job_id":"","path":"reject","reason":"reject_closed","slack_ms":0,"need_ms":{},"predicted_wait_ms":0,"queue_age_ms":{"free":0,"paid":0},"reserve_ms":0}`,
			"none",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := wire.NewVerdict(&tt.v)
			raw, err := json.Marshal(got)
			if err != nil || string(raw) != tt.wire || got.NeedMS.String() != tt.need {
				t.Errorf("got  %s (%s), error %v\nwant %s (%s)", raw, got.NeedMS, err, tt.wire, tt.need)
			}
			var back wire.Verdict
			if err := json.Unmarshal(raw, &back); err != nil {
				t.Fatal(err)
			}
			for _, path := range slackgate.Paths {
				want, asked := got.NeedMS.Of(path)
				if ms, ok := back.NeedMS.Of(path); ms != want || ok != asked {
					t.Errorf("%s read back as %d, %v", path, ms, ok)
				}
			}
			if ms, ok := back.NeedMS.Of(slackgate.Reject); ok {
				t.Errorf("a number of no pool: %d", ms)
			}
		})
	}
}

// A client that does not take its answer is no failure of ours; everything else
// that nobody expected is.
func TestAnswerNotTaken(t *testing.T) {
	for name, tt := range map[string]struct {
		err    error
		begun  bool // has the answer
		logged bool
	}{
		"the client has gone":           {err: &net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}, begun: true},
		"the client reads nothing":      {err: fmt.Errorf("answer: %w", &net.OpError{Op: "write", Net: "tcp", Err: os.ErrDeadlineExceeded}), begun: true},
		"so over another network":       {err: os.ErrDeadlineExceeded, begun: true},
		"another's connection":          {err: &net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}, logged: true},
		"what cannot be written":        {err: &json.UnsupportedValueError{Str: "NaN"}, begun: true, logged: true},
		"what was read from elsewhere":  {err: &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}, begun: true, logged: true},
		"the store does not take it":    {err: &broker.StoreError{Trouble: broker.TroubleNoAnswer, Err: os.ErrDeadlineExceeded}, begun: true},
		"what nobody knows, not begun":  {err: errors.New("what"), logged: true},
		"what nobody knows, when begun": {err: errors.New("what"), begun: true, logged: true},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			s := &Server{Options: Options{Log: slog.New(slog.NewJSONHandler(&log, nil))}}
			c := echo.New().NewContext(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/openapi.json", http.NoBody), httptest.NewRecorder())
			if tt.begun {
				c.Response().WriteHeader(http.StatusOK)
			}
			s.fail(tt.err, c)
			if got := strings.Contains(log.String(), `"level":"ERROR"`); got != tt.logged {
				t.Errorf("logged: %q", log.String())
			}
		})
	}
}

func pools(paid, free int64) (ms [slackgate.NumPaths]int64) {
	ms[slackgate.Paid], ms[slackgate.Free] = paid, free
	return ms
}
