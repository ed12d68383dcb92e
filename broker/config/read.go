package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"leeway/broker"
)

// Load reads the file at path (none if empty) over the defaults, then the
// environment (as os.Environ gives it) over that, and validates the result.
func Load(path string, environ []string) (*Config, error) {
	return load(Default(), path, environ)
}

// LoadToMeasure is Load for whoever is about to measure: a measured limit need
// not have been measured yet.
func LoadToMeasure(path string, environ []string) (*Config, error) {
	c := Default()
	c.toMeasure = true
	return load(c, path, environ)
}

func load(c *Config, path string, environ []string) (*Config, error) {
	if path != "" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("config: %w", err)
		}
		defer func() { _ = f.Close() }()
		if err := c.read(f); err != nil {
			return nil, fmt.Errorf("config: %s: %w", path, err)
		}
	}
	if err := c.applyEnv(environ); err != nil {
		return nil, fmt.Errorf("config: environment: %w", err)
	}
	if err := c.readKnees(path); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if err := c.Complete(); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return c, nil
}

// Parse reads a YAML document over the defaults, without the environment.
func Parse(doc []byte) (*Config, error) {
	c := Default()
	if err := c.read(bytes.NewReader(doc)); err != nil {
		return nil, err
	}
	if err := c.Complete(); err != nil {
		return nil, err
	}
	return c, nil
}

// readBounded reads a file of at most [MaxFileBytes].
func readBounded(r io.Reader) ([]byte, error) {
	doc, err := io.ReadAll(io.LimitReader(r, MaxFileBytes+1))
	if err == nil && len(doc) > MaxFileBytes {
		err = fmt.Errorf("larger than %d bytes", MaxFileBytes)
	}
	return doc, err
}

func (c *Config) read(r io.Reader) error {
	doc, err := readBounded(r)
	if err != nil {
		return err
	}
	file, err := parser.ParseBytes(doc, 0)
	if err != nil {
		return plain(err)
	}
	if len(file.Docs) > 1 {
		return errors.New("more than one document in the file")
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil || file.Docs[0].Body.Type() == ast.NullType {
		return nil // nothing in it, or comments only
	}
	if err := c.checkLiterals(file.Docs[0].Body); err != nil {
		return err
	}
	return plain(yaml.NewDecoder(bytes.NewReader(doc), yaml.DisallowUnknownField()).DecodeFromNode(file.Docs[0].Body, c))
}

// checkLiterals refuses what the decoder would read as something else, and takes
// out limits that are to be measured.
func (c *Config) checkLiterals(body ast.Node) error {
	// An alias is written out where it stands, and of aliases there, many times.
	for _, n := range ast.Filter(ast.AliasType, body) {
		if inBody(n) {
			return broker.Fieldf(pathOf(n), "must not hold an alias")
		}
	}
	// A key without a value would put zero in the place of its defaults.
	for _, n := range ast.Filter(ast.NullType, body) {
		return broker.Fieldf(pathOf(n), "has no value: leave the key out to keep the default")
	}
	for _, n := range ast.Filter(ast.MappingValueType, body) {
		v := n.(*ast.MappingValueNode) //nolint:forcetypeassert // what the filter asked for
		key := v.Key.String()
		if c.takeMeasured(v) || inBody(v.Value) {
			continue
		}
		for _, n := range elements(v.Value) {
			// The decoder would cut a fraction off and read numbers out of strings.
			if whole[key] && !slices.Contains(wholeTypes, n.Type()) {
				return broker.Fieldf(pathOf(n), "must be a whole number, without exponent or fraction")
			}
		}
		// Zero is how "left out" looks below.
		if neverZero[key] && zero(v.Value.String()) {
			return broker.Fieldf(pathOf(v.Value), "must be above 0: leave the key out for its default")
		}
	}
	return nil
}

// wholeTypes are the nodes that may hold a whole number.
var wholeTypes = []ast.NodeType{ast.IntegerType, ast.AliasType, ast.AnchorType, ast.TagType}

// inBody reports whether a node belongs to the fields of a request, which are the
// backend's and not this file's.
func inBody(n ast.Node) bool { return strings.Contains(n.GetPath()+".", ".options.body.") }

func pathOf(n ast.Node) string { return strings.TrimPrefix(n.GetPath(), "$.") }

// elements are those of a list, or the value itself.
func elements(v ast.Node) []ast.Node {
	if list, ok := v.(*ast.SequenceNode); ok {
		return list.Values
	}
	return []ast.Node{v}
}

// neverZero names the keys whose default stands for a zero, and which can
// therefore not be set to it.
var neverZero = map[string]bool{
	"deadline_ms": true, "max_deadline_ms": true, "max_output_tokens": true, "word_limit": true,
	"first_byte_p95_ms": true, "hold_p95_ms": true, "first_byte_share": true, "stall_ms": true, "valid_days": true,
}

func zero(literal string) bool {
	v, err := strconv.ParseFloat(literal, 64)
	return err == nil && v == 0
}

// whole names the keys that hold whole numbers.
var whole = wholeKeys(reflect.TypeFor[Config](), map[string]bool{})

func wholeKeys(t reflect.Type, names map[string]bool) map[string]bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return wholeKeys(t.Elem(), names)
	case reflect.Struct:
		for f := range t.Fields() {
			ft := f.Type
			if ft.Kind() == reflect.Pointer {
				ft = ft.Elem()
			}
			if ft.Kind() == reflect.Int || ft.Kind() == reflect.Int64 {
				names[f.Tag.Get("yaml")] = true
			}
			wholeKeys(ft, names)
		}
	default: // holds no keys
	}
	return names
}

// plain is a reader's error without the excerpt from the file that it would
// print: that may show a password.
func plain(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(yaml.FormatError(err, false, false))
}
