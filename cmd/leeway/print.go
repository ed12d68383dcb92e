package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// cells are those of a table's line.
type cells []any

// printTable prints a row for each item, in columns under a header.
func printTable[T any](out io.Writer, items []T, header cells, rowOf func(T) cells) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	line := func(r cells) { fmt.Fprintf(w, strings.Repeat("\t%v", len(r))[1:]+"\n", r...) }
	line(header)
	for _, item := range items {
		line(rowOf(item))
	}
	return w.Flush()
}

func printJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// instant is a time on the broker's clock for people to read.
func instant(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
