package httpapi

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"leeway/broker"
	"leeway/broker/wire"
)

// decodeStrict reads a document: unknown and duplicate fields, invalid UTF-8 and
// trailing bytes are errors that name the place.
func decodeStrict[T any](body []byte) (*T, error) {
	return decode[T](body, json.RejectUnknownMembers(true))
}

func decode[T any](body []byte, opts ...json.Options) (*T, error) {
	var v T
	if err := json.Unmarshal(body, &v, opts...); err != nil {
		return nil, inputError(err)
	}
	return &v, nil
}

// customIDIn is the custom_id in what is no submission, as far as it can be read.
func customIDIn(body []byte) string {
	var v struct {
		CustomID string `json:"custom_id"`
	}
	_ = json.Unmarshal(body, &v) // what is malformed after it does not matter
	return v.CustomID
}

// inputError says of an unreadable JSON body which field is wrong, or where it
// is malformed.
func inputError(err error) error {
	if sem, ok := errors.AsType[*json.SemanticError](err); ok {
		field := fieldAt(sem.JSONPointer)
		if errors.Is(err, json.ErrUnknownName) {
			return broker.Fieldf(field, "is not a known field")
		}
		return broker.Fieldf(field, "has the wrong type: want %s", wantedType(sem))
	}
	p := problem(http.StatusBadRequest, wire.ReasonInvalidJSON, "malformed JSON at byte 0: is not a JSON object")
	p.Field = "body"
	if syn, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		p.Field = fieldAt(syn.JSONPointer) // the innermost one that the reader was in
		if errors.Is(err, jsontext.ErrDuplicateName) {
			return broker.Fieldf(p.Field, "appears twice")
		}
		p.Detail = "malformed JSON at byte " + strconv.FormatInt(syn.ByteOffset, 10) + ": " + shorten(syn.Err.Error(), 120)
	}
	return p
}

// shorten cuts what may quote the body.
func shorten(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// fieldAt names the field at a place in a document.
func fieldAt(p jsontext.Pointer) string {
	parts := make([]string, 0, 2)
	for tok := range p.Tokens() {
		if tok == "" {
			tok = `""` // a field may be called that
		}
		parts = append(parts, shorten(tok, 64))
	}
	switch {
	case len(parts) == 0:
		return "body"
	case len(parts) > 2: // no field of ours lies deeper
		return strings.Join(parts[:2], ".") + "..."
	}
	return strings.Join(parts, ".")
}

func wantedType(e *json.SemanticError) string {
	if e.GoType != nil {
		switch e.GoType.Kind().String() {
		case "string":
			return "a string"
		case "int64", "int":
			return "a whole number"
		case "map", "struct":
			return "an object"
		}
	}
	return "another type"
}
