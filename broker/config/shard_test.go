package config

import (
	"slices"
	"strings"
	"testing"

	"leeway/broker"
)

func TestWorkerShards(t *testing.T) {
	t.Parallel()
	const doc = "redis: {shards: 4}\npools: {paid: {limit: 4}, free: {limit: 4}}\n"
	for _, tt := range []struct {
		more    string
		environ []string
		want    []int
	}{
		{"", nil, []int{0, 1, 2, 3}},
		{"worker: {shards: [2, 0]}\n", nil, []int{2, 0}},
		{"worker: {shards: [2, 0]}\n", []string{"LEEWAY_WORKER_SHARDS=1,3"}, []int{1, 3}},
		{"worker: {shards: [2, 0]}\n", []string{"LEEWAY_WORKER_SHARDS="}, []int{2, 0}},
		// Fewer slots than shards are enough for a worker that serves fewer.
		{"worker: {shards: [3], paid_slots: 1, free_slots: 0}\n", nil, []int{3}},
	} {
		c, err := Parse([]byte(doc + tt.more))
		if err == nil {
			err = c.applyEnv(tt.environ)
		}
		if err == nil {
			err = c.Complete()
		}
		if err != nil || !slices.Equal(c.WorkerShards(), tt.want) {
			t.Errorf("%q %v: %v, want %v", tt.more, tt.environ, err, tt.want)
		}
	}
	if _, err := Load("", []string{"LEEWAY_WORKER_SHARDS=one"}); fieldOf(err) != "LEEWAY_WORKER_SHARDS" {
		t.Errorf("%v", err)
	}
	one, err := Parse(nil)
	if err != nil || one.Redis.Shards != 1 || !slices.Equal(one.WorkerShards(), []int{0}) {
		t.Errorf("%+v, %v", one, err)
	}
}

// What is counted in one place has one home, whoever asks.
func TestHome(t *testing.T) {
	t.Parallel()
	const (
		keys    = "access: {producers: [{name: rated, key_sha256: R}, {name: capped, key_sha256: C}, {name: free, key_sha256: F}]}\n"
		limits  = "producers: {rated: {submissions_per_s: 5}, capped: {budget_micro_per_day: 1}, free: {classes: [summary]}}\n"
		classes = "classes: {summary: {}, nightly: {}}\n"
		budget  = "classes: {summary: {}, nightly: {budget_micro_per_day: 1}}\n"
	)
	for _, tt := range []struct {
		doc             string
		producer, class string
		name            string
		ok              bool
	}{
		{classes, "rated", "summary", "", false},
		{classes, "rated", "", "", false},
		// Each with limits has its own home, where its name is told by its key.
		{keys + classes + limits, "rated", "summary", "rated", true},
		{keys + classes + limits, "capped", "nightly", "capped", true},
		{keys + classes + limits, "capped", "", "capped", true},
		{keys + classes + limits, "free", "summary", "", false},
		{keys + classes + limits, "free", "", "", false},
		// Where anybody may give any name, all have one, and so have batches.
		{classes + limits, "rated", "summary", "", true},
		{classes + limits, "free", "summary", "", false},
		{classes + limits, "", "", "", true},
		// Nobody else's limits bind a key.
		{classes + limits, "", broker.AnyClass, "", false},
		{classes + limits, "rated", broker.AnyClass, "", true},
		{keys + budget + limits, "other", broker.AnyClass, "", true},
		{keys + budget + limits, "free", broker.AnyClass, "", false},
		// A class's budget binds every producer that may use it.
		{keys + budget + limits, "rated", "summary", "", true},
		{keys + budget + limits, "capped", "", "", true},
		{keys + budget + limits, "other", "nightly", "", true},
		{keys + budget + limits, "other", "summary", "", false},
		{keys + budget + limits, "other", "", "", true},
		{keys + budget + limits, "free", "", "", false},
	} {
		sha := strings.NewReplacer("R}", strings.Repeat("a", 64)+"}", "C}", strings.Repeat("b", 64)+"}", "F}", strings.Repeat("c", 64)+"}")
		c, err := Parse([]byte(sha.Replace(tt.doc)))
		if err != nil {
			t.Fatal(err)
		}
		name, ok := c.Home(tt.producer, tt.class)
		if ok != tt.ok || ok && name != tt.name {
			t.Errorf("%s\n%s, class %q: %q %v", tt.doc, tt.producer, tt.class, name, ok)
		}
	}
}
