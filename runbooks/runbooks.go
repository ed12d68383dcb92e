// Package runbooks holds what on-call reads: a page for each alert and each
// action. The pages are part of the binary, so that an alert's link opens from
// the system it speaks of.
package runbooks

import (
	"embed"
	"net/http"
)

//go:embed *.md
var pages embed.FS

// Handler serves the pages below /runbooks/ as plain text.
func Handler() http.Handler {
	files := http.StripPrefix("/runbooks/", http.FileServerFS(pages))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if r.URL.Path == "/runbooks/" {
			r.URL.Path = "/runbooks/README.md"
		}
		files.ServeHTTP(w, r)
	})
}
