package httpapi

import _ "embed"

// openAPI describes every route of this package. Tests hold it against the
// routes there are and against what the API answers.
//
//go:embed openapi.json
var openAPI []byte
