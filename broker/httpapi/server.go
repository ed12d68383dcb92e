// Package httpapi is the admission API: echo routes over the broker. A route is
// found in the file named after what it is about; the documents are in
// broker/wire.
package httpapi

import (
	"log/slog"
	"net/http"
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
	Background  *background.Group
	Log         *slog.Logger
}

// Server is the admission API.
type Server struct {
	Options
	echo     *echo.Echo
	checking chan struct{} // holds one token while the ledgers are checked
	replica  string        // names this process to workers that relay to it
	streams  chan struct{} // holds one token for each event stream
	memory   *memory
	ends     *subscribers[struct{}] // of jobs
	news     *subscribers[struct{}] // of jobs that were claimed or began to answer
	pieces   *subscribers[broker.Piece]
}

// New returns the API and starts its loops in the background group.
func New(o Options) *Server {
	s := &Server{
		Options: o, echo: echo.New(), replica: uuid.NewString(),
		checking: make(chan struct{}, 1), streams: make(chan struct{}, MaxStreams), memory: newMemory(o.Config().Limits.InFlightBytes),
		ends: newSubscribers[struct{}](), news: newSubscribers[struct{}](), pieces: newSubscribers[broker.Piece](),
	}
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
	e.Use(boundBody)
	e.GET("/livez", func(c echo.Context) error { return c.JSON(http.StatusOK, map[string]string{"status": "live"}) })
	e.GET("/readyz", s.ready)
	e.GET("/openapi.json", func(c echo.Context) error { return c.Blob(http.StatusOK, "application/json", openAPI) })
	producer, onCall := s.allow(roleProducer), s.allow(roleOnCall)
	e.POST("/v1/jobs", s.submit, producer)
	e.GET("/v1/jobs", s.listJobs, producer)
	e.GET("/v1/jobs/:id", s.getJob, producer)
	e.DELETE("/v1/jobs/:id", s.cancelJob, producer)
	e.GET("/v1/jobs/:id/events", s.events, producer)
	e.POST("/v1/jobs/batch", s.submitBatch, producer)
	e.POST("/v1/batches/:id", s.submitToBatch, producer)
	e.GET("/v1/batches", s.listBatches, producer)
	e.GET("/v1/batches/:id", s.getBatch, producer)
	e.DELETE("/v1/batches/:id", s.cancelBatch, producer)
	e.GET("/v1/batches/:id/lines", s.batchLines, producer)
	e.GET("/v1/batches/:id/results", s.batchResults, producer)
	e.POST(routeChat, s.chat, producer)
	e.GET(routeModels, s.models, producer)
	e.GET("/v1/gate", s.gate, producer)
	e.GET("/v1/pools", s.pools, producer)
	e.GET("/v1/budgets", s.budgets, producer)
	e.GET("/v1/flags", s.listFlags, producer)
	e.GET("/v1/flags/:name", s.getFlag, producer)
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
