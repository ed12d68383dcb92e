package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Serve serves the backend on api and, unless it is nil, the control endpoint
// on control until ctx ends, and closes both. It then returns nil, after every
// request has ended. It may be called once.
func (s *Server) Serve(ctx context.Context, api, control net.Listener) error {
	defer s.Close()
	failed := make(chan error, 2)
	var running sync.WaitGroup
	defer running.Wait()
	s.mu.Lock()
	s.address = &address{
		newServer: func() *http.Server { return s.httpServer(s.backendHandler()) },
		listener:  api, running: &running, failed: failed,
	}
	s.address.open()
	s.refuseConnections()
	s.mu.Unlock()
	var servers []*http.Server
	if control != nil {
		c := s.httpServer(s.controlHandler())
		servers = append(servers, c)
		running.Go(func() { report(c.Serve(control), failed) })
	}

	var err error
	select {
	case <-ctx.Done():
	case <-s.base.Done():
	case err = <-failed:
	}
	s.Close()
	s.mu.Lock()
	if s.address.server != nil {
		servers = append(servers, s.address.server)
	}
	s.address = nil
	s.mu.Unlock()
	for _, srv := range servers {
		// What is still being sent has been told to end; a client that does not
		// read is cut.
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		if srv.Shutdown(grace) != nil {
			_ = srv.Close()
		}
		cancel()
	}
	return err
}

// httpServer returns a server whose requests end when the lab is closed.
func (s *Server) httpServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:     h,
		BaseContext: func(net.Listener) context.Context { return s.base },
		// Clients that break off are the lab's daily bread.
		ErrorLog:       slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		MaxHeaderBytes: 64 << 10, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
	}
}

// refuseConnections closes the address while the fault that is set says so, and
// opens it otherwise. s.mu is held.
func (s *Server) refuseConnections() {
	if s.address != nil {
		s.address.setClosed(s.parsed.String() == "down.refused")
	}
}

// address is where the backend is reached. It can be closed, so that
// connections are refused, and opened again.
type address struct {
	newServer func() *http.Server
	running   *sync.WaitGroup
	failed    chan<- error // is told why serving ended

	listener net.Listener
	server   *http.Server  // nil while closed
	left     chan struct{} // closed when server has left listener
}

func (a *address) open() {
	srv, left := a.newServer(), make(chan struct{})
	a.server, a.left = srv, left
	a.running.Go(func() {
		defer close(left)
		report(srv.Serve(a.listener), a.failed)
	})
}

// setClosed closes the address and cuts the open connections, or opens it. If
// the address cannot be had again, that error is told.
func (a *address) setClosed(closed bool) {
	switch {
	case closed && a.server != nil:
		_ = a.server.Close()
		<-a.left
		a.server = nil
	case !closed && a.server == nil:
		l, err := relisten(a.listener)
		if err != nil {
			report(err, a.failed)
			return
		}
		a.listener = l
		a.open()
	}
}

// relisten opens a closed listener's address again. A listener may do so itself,
// as one in memory does; else its address is listened on anew.
func relisten(l net.Listener) (net.Listener, error) {
	if r, ok := l.(interface{ Relisten() (net.Listener, error) }); ok {
		return r.Relisten()
	}
	return net.Listen(l.Addr().Network(), l.Addr().String())
}

// report tells why serving ended, unless it was to end. The first reason counts.
func report(err error, failed chan<- error) {
	if errors.Is(err, http.ErrServerClosed) {
		return
	}
	select {
	case failed <- err:
	default:
	}
}

// backendHandler returns the handler of the backend itself: POST
// /v1/chat/completions, GET /v1/models, GET /v1/models/{id} and GET /healthz.
func (s *Server) backendHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.chat)
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("GET /v1/models/{id...}", s.model)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		errorResponse(newError(http.StatusNotFound, invalidRequest, "", "", fmt.Sprintf("no such route: %.16s %.128s", r.Method, r.URL.Path))).write(w)
	})
	return mux
}

// models lists the models, faults included.
func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	list := struct {
		Object string        `json:"object"`
		Data   []modelObject `json:"data"`
	}{Object: "list"}
	for _, id := range append([]string{s.cfg.Model}, FaultModels()...) {
		list.Data = append(list.Data, newModel(id))
	}
	jsonResponse(http.StatusOK, list).write(w)
}

func (s *Server) model(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if _, bad := s.modelFault(id); bad != nil {
		errorResponse(bad).write(w)
		return
	}
	jsonResponse(http.StatusOK, newModel(id)).write(w)
}
