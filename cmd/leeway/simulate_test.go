package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"leeway/rehearsal/simulate"
)

func TestSimulateCommandTable(t *testing.T) {
	var out bytes.Buffer
	c := simulateCmd{Seeds: 2, Only: "bursts"}
	if err := c.Run(context.Background(), &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"no schedule beats 177 usable", "seed, no re-check", "predictive"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestSimulateCommandJSON(t *testing.T) {
	var out bytes.Buffer
	c := simulateCmd{Seeds: 1, JSON: true, Only: "declared | fixed"}
	if err := c.Run(context.Background(), &out); err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(&out)
	dec.DisallowUnknownFields()
	rows := 0
	for dec.More() {
		var r simulate.Row
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.Seeds != 1 || r.Offered != 720 || r.Bound == nil {
			t.Errorf("%+v", r)
		}
		rows++
	}
	if rows != 8 { // two scenarios, four policies each
		t.Errorf("%d rows", rows)
	}
}

func TestSimulateCommandTrace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mine.csv")
	if err := os.WriteFile(file, []byte("timestamp_ms,input_length,output_length\n0,10,5\n100,20,5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	c := simulateCmd{Seeds: 3, JSON: true, Trace: file}
	if err := c.Run(context.Background(), &out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), `"workload":"mine.csv"`) {
		t.Error(out.String())
	}
}

func TestSimulateCommandRefuses(t *testing.T) {
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	for name, c := range map[string]struct {
		ctx context.Context
		cmd simulateCmd
	}{
		"no seeds":       {context.Background(), simulateCmd{Seeds: 0}},
		"too many seeds": {context.Background(), simulateCmd{Seeds: maxSeeds + 1}},
		"no such row":    {context.Background(), simulateCmd{Seeds: 1, Only: "nothing of the kind"}},
		"no such file":   {context.Background(), simulateCmd{Seeds: 1, Trace: filepath.Join(t.TempDir(), "none")}},
		"interrupted":    {canceled, simulateCmd{Seeds: 1000}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := c.cmd.Run(c.ctx, &out); err == nil {
				t.Fatal("no error")
			} else if name == "interrupted" && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		})
	}
}

func TestSimulateCommandShards(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mine.csv")
	if err := os.WriteFile(file, []byte("timestamp_ms,input_length,output_length\n0,10,5\n100,20,5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := simulateCmd{Seeds: 3, JSON: true, Trace: file, Shards: []int{1, 4}, Choices: []int{1, 2}, ViewAge: time.Second}
	var out bytes.Buffer
	if err := c.Run(context.Background(), &out); err != nil {
		t.Fatal(err)
	}
	var rows []simulate.ShardRow
	for dec := json.NewDecoder(&out); dec.More(); {
		var r simulate.ShardRow
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r)
	}
	// One shard leaves nothing to choose.
	if len(rows) != 3 || rows[0].Shards != 1 || rows[2].Choices != 2 || rows[2].ViewAgeMS != 1000 || rows[2].Usable != 2 {
		t.Fatalf("%+v", rows)
	}
	c.JSON = false
	if err := c.Run(context.Background(), &out); err != nil || !strings.Contains(out.String(), "paid 32 workers, free 16") ||
		!strings.Contains(out.String(), "100.0 %") {
		t.Errorf("%v\n%s", err, out.String())
	}
	c.Shards = []int{17}
	if err := c.Run(context.Background(), &out); err == nil || !strings.Contains(err.Error(), "fewer than 17 shards") {
		t.Error(err)
	}
}
