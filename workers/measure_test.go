package workers

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"leeway/broker/measure"
	"leeway/slackgate"
	"leeway/slackgate/latency"
	"leeway/workers/attempt"
	"leeway/workers/backend"
)

func sample(name string, kind latency.Kind, ms int64, cut bool) latency.Sample {
	return latency.Sample{Series: latency.Series{Name: name, Kind: kind}, MS: ms, Cut: cut}
}

// A call tells of its backend how long the first byte and the whole took, and
// which of them was cut; one that was turned away tells nothing.
func TestCallSamples(t *testing.T) {
	name := measure.BackendName("b")
	answer := backend.Answer{HasText: true, FirstByte: time.Second}
	for _, tt := range []struct {
		name string
		made attempt.Attempt
		want []latency.Sample
	}{
		{"a whole answer", attempt.Attempt{Answer: answer, Hold: 3 * time.Second}, []latency.Sample{
			sample(name, latency.FirstByte, 1000, false), sample(name, latency.Hold, 3000, false),
		}},
		{"an answer that stalled", attempt.Attempt{Answer: answer, Hold: 3 * time.Second, Reason: backend.ReasonStall}, []latency.Sample{
			sample(name, latency.FirstByte, 1000, false), sample(name, latency.Hold, 3000, true),
		}},
		{
			"a call cut before any text",
			attempt.Attempt{Answer: backend.Answer{FirstByte: 2 * time.Second}, Hold: 2 * time.Second, Censored: true, Reason: backend.ReasonFirstByte},
			[]latency.Sample{sample(name, latency.FirstByte, 2000, true), sample(name, latency.Hold, 2000, true)},
		},
		{"a call that was turned away", attempt.Attempt{Hold: time.Second, Reason: backend.ReasonRateLimited}, nil},
	} {
		tt.made.Backend = "b"
		if diff := cmp.Diff(tt.want, callSamples(&tt.made)); diff != "" {
			t.Errorf("%s (- want, + got):\n%s", tt.name, diff)
		}
	}
}

// A job without answer text tells of its pool that the first byte takes longer
// than the slot was held.
func TestPoolSamples(t *testing.T) {
	name := measure.PoolName(slackgate.Free)
	for _, tt := range []struct {
		name    string
		hasText bool
		whole   bool
		hung    bool
		want    []latency.Sample
	}{
		{"a whole answer", true, true, false, []latency.Sample{
			sample(name, latency.FirstByte, 1000, false), sample(name, latency.Hold, 5000, false),
		}},
		{"a cut answer", true, false, false, []latency.Sample{
			sample(name, latency.FirstByte, 1000, false), sample(name, latency.Hold, 5000, true),
		}},
		{"no text", false, false, false, []latency.Sample{
			sample(name, latency.FirstByte, 5000, true), sample(name, latency.Hold, 5000, true),
		}},
		{"a whole answer after a call that hung", true, true, true, []latency.Sample{
			sample(name, latency.FirstByte, 1000, true), sample(name, latency.Hold, 5000, true),
		}},
	} {
		got := poolSamples(slackgate.Free, tt.hasText, time.Second, 5*time.Second, tt.whole, tt.hung)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (- want, + got):\n%s", tt.name, diff)
		}
	}
}

func TestSaysOfPool(t *testing.T) {
	for _, tt := range []struct {
		name string
		res  attempt.Result
		want bool
	}{
		{"an answer came", attempt.Result{Answer: backend.Answer{HasText: true}}, true},
		{"a call was cut for want of text", attempt.Result{Attempts: []attempt.Attempt{{}, {Censored: true}}}, true},
		{"the deadline came", attempt.Result{Reason: backend.ReasonDeadline}, true},
		{"the call was turned away", attempt.Result{Reason: backend.ReasonRateLimited, Attempts: []attempt.Attempt{{}}}, false},
		{"nothing was called", attempt.Result{}, false},
	} {
		if got := saysOfPool(&tt.res); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
