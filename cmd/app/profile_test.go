package app

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"leeway/broker/config"
)

func TestProfilesAreOffUnlessAskedFor(t *testing.T) {
	var b base
	mux := http.NewServeMux()
	b.serveProfiles(mux)
	for _, on := range []bool{false, true, false} {
		cfg := config.Default()
		cfg.Profiles = on
		b.cfg.Store(cfg)
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline", "/debug/pprof/trace?seconds=0.01"} {
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			if got := w.Code == http.StatusOK && w.Body.Len() > 0; got != on {
				t.Errorf("%s with profiles %v: %d, %d bytes", path, on, w.Code, w.Body.Len())
			}
		}
	}
}
