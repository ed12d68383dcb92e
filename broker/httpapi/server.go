// Package httpapi is the admission API: echo routes over the broker. A route is
// found in the file named after what it is about; the documents are in
// broker/wire.
package httpapi

import (
	"log/slog"
	"net/http"
	"runtime"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"leeway/broker"
	"leeway/broker/background"
	"leeway/broker/config"
	"leeway/broker/flag"
	"leeway/broker/measure"
	"leeway/broker/shard"
	"leeway/broker/store"
	"leeway/slackgate"
)

// Options are what the API stands on. All fields are required.
type Options struct {
	Config   func() *config.Config
	Admitter *shard.Admitter
	Store    store.Store
	// Latency is what is believed about a pool.
	Latency func(path slackgate.Path) measure.Measured
	// StartValues are the flags' values as configured.
	StartValues func() flag.Values
	// Risks says in plain words what the store's settings put at risk.
	Risks      func() []string
	Background *background.Group
	Log        *slog.Logger
}

// Server is the admission API.
type Server struct {
	Options
	echo     *echo.Echo
	checking chan struct{}          // holds one token while the ledgers are checked
	sinceS   int64                  // when it began to serve, in seconds
	replica  string                 // names this process to workers that relay to it
	streams  *shares                // event streams
	waits    *shares                // requests that wait
	memory   *shares                // bytes that are being read or decided
	reads    *shares                // requests that read the store
	ends     *subscribers[struct{}] // of jobs
	news     *subscribers[struct{}] // of jobs that were claimed or began to answer
	pieces   *subscribers[broker.Piece]
	ready    chan readiness // holds what was found last, unless somebody looks
}

// New returns the API and starts its loops in the background group.
func New(o Options) *Server {
	s := &Server{
		Options: o, echo: echo.New(), sinceS: time.Now().Unix(), replica: uuid.NewString(), //nolint:forbidigo // shown alone
		checking: make(chan struct{}, 1), streams: newShares(MaxStreams, 0), waits: newShares(MaxWaits, 0),
		reads:  newShares(readsPerCore*int64(runtime.GOMAXPROCS(0)), 0),
		memory: newShares(o.Config().Limits.InFlightBytes, perByte*o.Config().Limits.LineBytes()),
		ends:   newSubscribers[struct{}](), news: newSubscribers[struct{}](), pieces: newSubscribers[broker.Piece](),
		ready: make(chan readiness, 1),
	}
	s.ready <- readiness{}
	s.followJobs()
	e := s.echo
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = s.fail
	e.Use(middleware.RecoverWithConfig(middleware.RecoverConfig{
		LogErrorFunc: func(_ echo.Context, err error, stack []byte) error {
			o.Log.Error("handler panicked", "error", err, "stack", string(stack))
			return err
		},
	}))
	e.Use(boundBody, boundAnswer, notTheirBatches)
	e.GET("/livez", func(c echo.Context) error { return c.JSON(http.StatusOK, map[string]string{"status": "live"}) })
	e.GET("/readyz", s.readyz)
	e.GET("/openapi.json", func(c echo.Context) error { return c.Blob(http.StatusOK, "application/json", openAPI) })
	producer, onCall := s.allow(roleProducer), s.allow(roleOnCall)
	read := []echo.MiddlewareFunc{producer, s.boundReads}
	e.POST("/v1/jobs", s.submit, producer)
	e.GET("/v1/jobs", s.listJobs, read...)
	e.GET("/v1/jobs/:id", s.getJob, producer)
	e.DELETE("/v1/jobs/:id", s.cancelJob, read...)
	e.GET("/v1/jobs/:id/events", s.events, producer)
	e.POST("/v1/jobs/batch", s.submitBatch, producer)
	e.POST("/v1/batches/:id", s.submitToBatch, producer)
	e.GET("/v1/batches", s.listBatches, read...)
	e.GET("/v1/batches/:id", s.getBatch, producer)
	e.DELETE("/v1/batches/:id", s.cancelBatch, read...)
	e.GET("/v1/batches/:id/lines", s.batchLines, read...)
	e.GET("/v1/batches/:id/results", s.batchResults, producer)
	e.POST(routeChat, s.chat, producer)
	e.GET(routeModels, s.models, producer)
	e.GET("/v1/gate", s.gate, read...)
	e.GET("/v1/pools", s.pools, read...)
	e.GET("/v1/budgets", s.budgets, read...)
	e.GET("/v1/flags", s.listFlags, read...)
	e.GET("/v1/flags/:name", s.getFlag, read...)
	e.PUT("/v1/flags/:name", s.setFlag, onCall)
	e.DELETE("/v1/flags/:name", s.clearFlag, onCall)
	e.GET("/v1/audit", s.audit, onCall)
	e.POST("/v1/pools/:pool/drain", s.drainPool, onCall)
	e.POST("/v1/pools/:pool/resume", s.resumePool, onCall)
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
// silent client from holding it. WriteTimeout is that of an answer that is
// written at once; who streams or waits sets its own deadlines.
func HTTP(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		WriteTimeout:      writeWithin,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
}
