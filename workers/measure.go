package workers

import (
	"context"
	"slices"
	"time"

	"leeway/broker/measure"
	"leeway/slackgate"
	"leeway/slackgate/latency"
	"leeway/workers/attempt"
	"leeway/workers/backend"
)

// measure counts calls for the gate. A count that is lost is no harm.
func (c *consumer) measure(samples ...latency.Sample) {
	if err := c.shard.Store.Measure(context.Background(), samples...); err != nil {
		c.Log.Debug("latency not counted", "path", c.Path.String(), "error", err)
	}
}

// poolSamples are what a job tells of its pool: the time to its first answer
// text, over all its attempts, and how long it held its slot. Where a call hung
// before the one that answered, both count as cut: how long it was waited for is
// that job's slack, and jobs with less leave it sooner.
func poolSamples(path slackgate.Path, hasText bool, firstByte, held time.Duration, whole, hung bool) []latency.Sample {
	if !hasText {
		firstByte = held
	}
	return samples(measure.PoolName(path), firstByte, !hasText || hung, held, !whole || hung)
}

// callSamples are what one call tells of its backend. A backend that turned
// the call away says nothing of how long its answers take.
func callSamples(a *attempt.Attempt) []latency.Sample {
	if !a.HasText && !a.Censored {
		return nil
	}
	return samples(measure.BackendName(a.Backend), a.FirstByte, a.Censored, a.Hold, a.Reason != "")
}

// samples are a first byte and a hold time, and whether each was cut.
func samples(name string, firstByte time.Duration, noText bool, held time.Duration, cut bool) []latency.Sample {
	return []latency.Sample{
		{Series: latency.Series{Name: name, Kind: latency.FirstByte}, MS: firstByte.Milliseconds(), Cut: noText},
		{Series: latency.Series{Name: name, Kind: latency.Hold}, MS: held.Milliseconds(), Cut: cut},
	}
}

// saysOfPool reports whether a job's end says anything about its pool's latency:
// an answer came, or it was cut for want of one. Refusals and errors that came
// back at once do not.
func saysOfPool(r *attempt.Result) bool {
	return r.HasText || r.Reason == backend.ReasonDeadline || hung(r)
}

// hung reports whether a call of the job's was cut for want of a first byte.
func hung(r *attempt.Result) bool {
	return slices.ContainsFunc(r.Attempts, func(a attempt.Attempt) bool { return a.Censored })
}
