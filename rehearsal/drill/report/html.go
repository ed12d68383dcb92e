package report

import (
	_ "embed"
	"html/template"
	"io"
	"strings"

	"leeway/rehearsal/drill"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"tick": tick, "number": number, "opt": opt, "spend": spendLines, "misses": missLines,
	"decisions": decisions, "waits": waits, "timeline": timeline, "reasons": reasons, "before": before, "join": strings.Join, "lateNote": func() string { return lateNote }, "causes": causes,
	"percent": func(m map[string]float64, n, of string) string { return percent(m[n], m[of]) },
	"add":     func(a, b int) int { return a + b },
}).Parse(pageText))

// HTML writes the evidence as one file that needs nothing beside it.
func HTML(w io.Writer, e *drill.Evidence) error {
	return page.Execute(w, struct {
		*drill.Evidence

		Declared  [][2]string
		Simulated string
	}{e, declared(e.Plan), simulatedNote})
}
