package httpapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"
)

// modelView is a class as a model.
type modelView struct {
	ID     string `json:"id"`
	Object string `json:"object"`
	// Created is when the process began to serve it, in Unix seconds.
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	// What a class is beside a model.
	DeadlineMS      int64 `json:"deadline_ms"`
	MaxDeadlineMS   int64 `json:"max_deadline_ms"`
	ReserveMS       int64 `json:"reserve_ms"`
	MaxOutputTokens int   `json:"max_output_tokens"`
	Default         bool  `json:"default"`
}

// models lists the classes that the caller may use.
func (s *Server) models(c echo.Context) error {
	cfg := s.Config()
	out := struct {
		Object string      `json:"object"`
		Data   []modelView `json:"data"`
	}{Object: "list", Data: []modelView{}}
	for name, class := range cfg.Classes {
		if !cfg.MayUse(callerOf(c).name, name) {
			continue
		}
		out.Data = append(out.Data, modelView{
			ID: name, Object: "model", Created: s.sinceS, OwnedBy: "leeway",
			DeadlineMS: class.DeadlineMS, MaxDeadlineMS: class.MaxDeadlineMS, ReserveMS: *class.ReserveMS,
			MaxOutputTokens: class.MaxOutputTokens, Default: name == cfg.DefaultClass,
		})
	}
	slices.SortFunc(out.Data, func(a, b modelView) int { return strings.Compare(a.ID, b.ID) })
	return c.JSON(http.StatusOK, out)
}
