// Package httpapi is the admission API: echo routes over the broker.
package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"leeway/broker"
	"leeway/broker/background"
	"leeway/broker/config"
	"leeway/broker/faultpoint"
	"leeway/broker/flag"
	"leeway/broker/measure"
	"leeway/broker/redisstore"
	"leeway/broker/shard"
	"leeway/broker/wire"
	"leeway/slackgate"
)

// Options are what the API stands on. All fields are required.
type Options struct {
	Config   func() *config.Config
	Admitter *shard.Admitter
	Store    *shard.Store
	// Latency is what is believed about a pool.
	Latency func(path slackgate.Path) measure.Measured
	// StartValues are the flags' values as configured.
	StartValues func() flag.Values
	Background  *background.Group
	Log         *slog.Logger
}

// Server is the admission API.
type Server struct {
	Options
	echo       *echo.Echo
	notifier   *notifier
	background *background.Group
	checking   chan struct{} // holds one token while the ledgers are checked
	replica    string        // names this process to workers that relay to it
	streams    chan struct{} // holds one token for each event stream
	news       *subscribers[struct{}]
	pieces     *subscribers[broker.Piece]
	memory     *memory
}

// New returns the API and starts its loops in the background group.
func New(o Options) *Server {
	s := &Server{Options: o, notifier: newNotifier(), background: o.Background, echo: echo.New(), checking: make(chan struct{}, 1)}
	s.replica, s.streams = uuid.NewString(), make(chan struct{}, MaxStreams)
	s.news, s.pieces = newSubscribers[struct{}](), newSubscribers[broker.Piece]()
	s.memory = newMemory(o.Config().Limits.InFlightBytes)
	s.followJobs()
	o.Background.Go("job ends", func(ctx context.Context) error {
		ended, closeSub := o.Store.Ended(ctx)
		defer func() { _ = closeSub() }()
		return s.notifier.run(ctx, ended)
	})
	e := s.echo
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = s.fail
	e.Use(middleware.RecoverWithConfig(middleware.RecoverConfig{
		LogErrorFunc: func(_ echo.Context, err error, stack []byte) error {
			o.Log.Error("handler panicked", "error", err, "stack", string(stack))
			return err
		},
	}))
	e.Use(boundBody)
	e.GET("/livez", func(c echo.Context) error { return c.JSON(http.StatusOK, map[string]string{"status": "live"}) })
	e.GET("/readyz", s.ready)
	e.GET("/openapi.json", s.openAPI)
	producer, onCall := s.allow(roleProducer), s.allow(roleOnCall)
	e.POST("/v1/jobs", s.submit, producer)
	e.POST("/v1/jobs/batch", s.batch, producer)
	e.GET("/v1/jobs", s.listJobs, producer)
	e.GET("/v1/batches", s.listBatches, producer)
	e.GET("/v1/batches/:id", s.getBatch, producer)
	e.POST("/v1/batches/:id", s.batchAgain, producer)
	e.DELETE("/v1/batches/:id", s.cancelBatch, producer)
	e.GET("/v1/batches/:id/lines", s.batchLines, producer)
	e.GET("/v1/batches/:id/results", s.batchResults, producer)
	e.GET("/v1/jobs/:id", s.get, producer)
	e.DELETE("/v1/jobs/:id", s.cancel, producer)
	e.GET("/v1/jobs/:id/events", s.events, producer)
	e.POST(routeChat, s.chat, producer)
	e.GET(routeModels, s.models, producer)
	e.GET("/v1/gate", s.gate, producer)
	e.GET("/v1/pools", s.pools, producer)
	e.GET("/v1/budgets", s.budgets, producer)
	e.GET("/v1/flags", s.listFlags, producer)
	e.GET("/v1/flags/:name", s.getFlag, producer)
	e.PUT("/v1/flags/:name", s.putFlag, onCall)
	e.DELETE("/v1/flags/:name", s.clearFlag, onCall)
	e.GET("/v1/audit", s.audit, onCall)
	e.POST("/v1/pools/:pool/drain", s.drain, onCall)
	e.POST("/v1/pools/:pool/resume", s.resume, onCall)
	e.POST("/v1/pools/:pool/backends/:backend/drain", s.drainBackend, onCall)
	e.POST("/v1/pools/:pool/backends/:backend/resume", s.resumeBackend, onCall)
	e.GET("/v1/ledgers/spend", s.spend, onCall)
	e.GET("/v1/ledgers/misses", s.misses, onCall)
	e.GET("/v1/ledgers/rollups", s.rollups, onCall)
	e.GET("/v1/ledgers/check", s.checkLedgers, onCall)
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.echo.ServeHTTP(w, r) }

// HTTP is an http.Server for a handler, with the bounds that keep a slow or
// silent client from holding it. Bodies and answers have no time limit of
// their own: batches stream, and ?wait= waits.
func HTTP(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
}

func (s *Server) fail(err error, c echo.Context) {
	p := asProblem(err)
	if p.Reason == wire.ReasonInternal {
		s.Log.Error("request failed", "method", c.Request().Method, "route", c.Path(), "error", err)
	}
	if c.Response().Committed {
		return
	}
	write := func() error { return writeProblem(c.Response(), p) }
	if route := c.Path(); route == routeChat || route == routeModels {
		write = func() error { return failChat(c, p) }
	}
	if err := write(); err != nil {
		s.Log.Debug("problem not delivered", "error", err)
	}
}

// ready exercises an admission dry run: a gate that cannot decide is not
// ready, whatever a ping says. A failed background loop shows here too.
func (s *Server) ready(c echo.Context) error {
	type answer struct {
		Status  string           `json:"status"`
		Checks  map[string]any   `json:"checks"`
		Verdict *wire.Verdict    `json:"verdict,omitempty"`
		Reason  slackgate.Reason `json:"reason,omitempty"`
	}
	a := answer{Status: "ready", Checks: map[string]any{"background": "ok", "gate": "ok"}}
	if err := s.background.Err(); err != nil {
		a.Status, a.Checks["background"] = "not ready", "a background loop has failed: see the log"
	}
	v, _, err := s.dryRun(c.Request().Context())
	// A shard that cannot decide keeps none of the others from it.
	decided := err == nil || (v.Reason != "" && !v.Reason.Unavailable())
	if decided {
		if full := s.Store.Writable(c.Request().Context()); full != nil {
			decided, err = false, full
		}
	}
	if err != nil {
		a.Checks["gate"] = err.Error()
		if errors.Is(err, broker.ErrUnavailable) {
			a.Checks["gate"] = broker.TroubleOf(err).Sentence()
			if layout, ok := errors.AsType[*redisstore.LayoutError](err); ok {
				a.Checks["gate"] = layout.Error()
			}
		}
	}
	switch {
	case !decided:
		a.Status = "not ready"
	default:
		a.Verdict = wire.NewVerdict(&v)
		if v.Reason.Unavailable() {
			a.Status, a.Checks["gate"] = "not ready", string(v.Reason)
		}
	}
	status := http.StatusOK
	if a.Status != "ready" {
		status = http.StatusServiceUnavailable
	}
	return c.JSON(status, a)
}

// parse reads a submission and turns it into a job.
func (s *Server) parse(ctx context.Context, who caller, body []byte, receivedAt time.Time) (*submission, *broker.Job, error) {
	sub, err := decode(body)
	if err != nil {
		return nil, nil, err
	}
	nowMS := s.Store.NowMS()
	if !absent(sub.DeadlineAt) && nowMS == 0 {
		if err := s.Store.SyncClock(ctx); err != nil {
			return nil, nil, err
		}
		nowMS = s.Store.NowMS()
	}
	cfg := s.Config()
	if who.role == roleProducer {
		sub.Producer = who.name // the key's owner, whatever the body says
	}
	job, err := sub.job(cfg, nowMS, receivedAt)
	return sub, job, err
}

// known is the verdict of a submission that became a job before and cannot be
// read as one again: its deadline_at has passed, say.
func (s *Server) known(ctx context.Context, sub *submission, key broker.IdempotencyKey) (broker.Verdict, bool) {
	if sub == nil || key.Value == "" {
		return broker.Verdict{}, false
	}
	v, err := s.Admitter.Known(ctx, sub.Producer, key)
	return v, err == nil // else what was wrong with the submission is the answer
}

func (s *Server) submit(c echo.Context) error {
	receivedAt := time.Now()
	if err := wantMedia(c.Request(), "application/json"); err != nil {
		return err
	}
	body, release, err := s.readBody(c, s.Config().LineBytes(callerOf(c).name))
	if err != nil {
		return err
	}
	defer release()
	bodyRead(c)
	ctx := c.Request().Context()
	sub, job, err := s.parse(ctx, callerOf(c), body, receivedAt)
	key, wrongKey := idempotencyKey(c.Request().Header)
	if err != nil {
		if v, ok := s.known(ctx, sub, keyed(key, body)); ok {
			c.Response().Header().Set("Location", "/v1/jobs/"+v.JobID)
			return c.JSON(http.StatusOK, wire.NewVerdict(&v))
		}
		return err
	}
	if wrongKey != nil {
		return wrongKey
	}
	job.Key = keyed(key, body)
	faultpoint.Reach(faultpoint.Received)
	v, err := s.Admitter.Submit(ctx, job)
	limitHeaders(c.Response().Header(), &v)
	faultpoint.Reach(faultpoint.Replying)
	if !v.Admitted() {
		return notAdmitted(&v, err)
	}
	c.Response().Header().Set("Location", "/v1/jobs/"+v.JobID)
	status := http.StatusAccepted
	if v.Repeated {
		status = http.StatusOK
	}
	return c.JSON(status, wire.NewVerdict(&v))
}

// notAdmitted is what to tell of a submission that was not admitted: the
// gate's refusal, or why there is none.
func notAdmitted(v *broker.Verdict, err error) error {
	if v.Reason == "" {
		return err
	}
	p := refusal(v)
	if err != nil {
		p.Detail = broker.TroubleOf(err).Sentence() + "; nothing was admitted"
	}
	return p
}

// How long a client may take to send a body, or the next line of a batch, and
// to take in what is written to it.
const (
	bodyWithin  = 30 * time.Second
	lineWithin  = time.Minute
	writeWithin = time.Minute
)

// patience bounds what comes next on the request's connection; 0 leaves a
// direction as it is.
func patience(c echo.Context, read, write time.Duration) error {
	rc := http.NewResponseController(c.Response())
	var err error
	if read > 0 {
		err = rc.SetReadDeadline(time.Now().Add(read))
	}
	if write > 0 && err == nil {
		err = rc.SetWriteDeadline(time.Now().Add(write))
	}
	if errors.Is(err, http.ErrNotSupported) { // a recorder in a test, say
		return nil
	}
	return err
}

// bodyRead undoes patience with the producer, once its body is there whole:
// net/http takes a read deadline that passes while a handler works for a client
// that has gone. A body that was left unread keeps its deadline, or net/http
// would wait for the rest of it for ever.
func bodyRead(c echo.Context) {
	_ = http.NewResponseController(c.Response()).SetReadDeadline(time.Time{})
}

// answered undoes patience with the reader: net/http keeps a write deadline for
// the requests that follow on the connection.
func answered(c echo.Context) {
	_ = http.NewResponseController(c.Response()).SetWriteDeadline(time.Time{})
}

// boundBody gives every body its time, whoever reads it and whether anybody
// does.
func boundBody(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if c.Request().ContentLength != 0 {
			if err := patience(c, bodyWithin, 0); err != nil {
				return err
			}
		}
		return next(c)
	}
}

// bodyError tells a body that is too large from a producer that has gone.
func bodyError(err error) error {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return err
	}
	return problem(http.StatusBadRequest, wire.ReasonInvalidJSON, "the body ended early")
}

func wantMedia(r *http.Request, types ...string) error {
	got := r.Header.Get("Content-Type")
	var err error
	if !slices.Contains(types, got) { // with parameters, say
		got, _, err = mime.ParseMediaType(got)
	}
	if err == nil && slices.Contains(types, got) {
		if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
			return problem(http.StatusUnsupportedMediaType, wire.ReasonMediaType, "compressed bodies are not taken")
		}
		return nil
	}
	return problem(http.StatusUnsupportedMediaType, wire.ReasonMediaType, "want Content-Type "+types[0])
}

// recheck is how often a waiting reader looks for itself: a notice can be lost
// while the store is away.
const recheck = time.Second

func (s *Server) get(c echo.Context) error {
	id := c.Param("id")
	wait, err := s.waitFor(c.QueryParam("wait"))
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	ended, done := s.notifier.wait(id)
	defer done()
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	look := time.NewTicker(recheck)
	defer look.Stop()
	for last := false; ; {
		view, err := s.Store.Get(ctx, id)
		switch {
		case errors.Is(err, broker.ErrUnavailable) && wait > 0 && !last:
			// whoever has time to wait need not hear of it
		case err != nil:
			return err
		case !mine(c, view):
			return broker.ErrNotFound
		case view.State == broker.StateDone || wait == 0 || last:
			return c.JSON(http.StatusOK, view)
		}
		select {
		case <-ended:
			last = true // closed: look once more and answer
		case <-deadline.C:
			last = true
		case <-look.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// waitFor reads ?wait=: a duration such as 10s or 500ms, at most the configured
// limit: a longer one is answered after that with the state then.
func (s *Server) waitFor(v string) (time.Duration, error) {
	if v == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		return 0, broker.Fieldf("wait", "must be a duration such as 10s or 500ms")
	}
	if d < 0 {
		return 0, broker.Fieldf("wait", "is negative")
	}
	return min(d, time.Duration(s.Config().Limits.WaitMS)*time.Millisecond), nil
}

// What ?only= of a DELETE may say.
const (
	onlyCancel = "cancel" // take back, and leave the answer of a job that has ended
	onlyDelete = "delete" // delete what has ended, and leave the others alone
)

// cancel takes back a job that has not ended; of one that has, it deletes text
// and answer. The record and the ledger rows stay. ?only= restricts it to one
// of the two.
func (s *Server) cancel(c echo.Context) error {
	id, ctx := c.Param("id"), c.Request().Context()
	q := newQuery(c, "only")
	only := oneOf(q, "only", onlyCancel, onlyDelete)
	if q.err != nil {
		return q.err
	}
	if callerOf(c).role == roleProducer {
		view, err := s.Store.Get(ctx, id)
		if err != nil {
			return err
		}
		if !mine(c, view) {
			return broker.ErrNotFound
		}
	}
	if only == onlyDelete {
		view, err := s.Store.Get(ctx, id)
		if err != nil {
			return err
		}
		if view.State != broker.StateDone {
			return problem(http.StatusConflict, wire.ReasonOrder, "the job has not ended: cancel it first")
		}
	}
	what, err := s.Store.Cancel(ctx, id)
	if err != nil {
		s.logLostCancel(err, id)
		return err
	}
	status := http.StatusOK
	switch what {
	case redisstore.CancelMissing:
		return broker.ErrNotFound
	case redisstore.CancelDone:
		if only == onlyCancel {
			return problem(http.StatusConflict, wire.ReasonOrder, "the job has ended: there is nothing to cancel")
		}
		if err := s.Store.Purge(ctx, id); err != nil {
			return err
		}
		return c.JSON(status, map[string]string{"job_id": id, "result": "deleted"})
	case redisstore.CancelRunning:
		status = http.StatusAccepted
	case redisstore.CancelWaiting:
		s.logEnd(id)
	case redisstore.CancelLate:
	}
	return c.JSON(status, map[string]string{"job_id": id, "result": string(what)})
}
