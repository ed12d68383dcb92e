package app

import (
	"net/http"
	"net/http/pprof"
)

// serveProfiles serves the process's profiles, as go tool pprof asks for them,
// while the configuration says so.
func (b *base) serveProfiles(mux *http.ServeMux) {
	for pattern, h := range map[string]http.HandlerFunc{
		"GET /debug/pprof/":        pprof.Index,
		"GET /debug/pprof/cmdline": pprof.Cmdline,
		"GET /debug/pprof/profile": pprof.Profile,
		"GET /debug/pprof/trace":   pprof.Trace,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if !b.config().Profiles {
				http.NotFound(w, r)
				return
			}
			h(w, r)
		})
	}
}
