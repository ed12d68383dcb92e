package httpapi

import (
	_ "embed"
	"net/http"

	"github.com/labstack/echo/v4"
)

// openAPI describes every route of this package. Tests hold it against the
// routes there are and against what the API answers.
//
//go:embed openapi.json
var openAPI []byte

func (s *Server) openAPI(c echo.Context) error {
	return c.Blob(http.StatusOK, "application/json", openAPI)
}
