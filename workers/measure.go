package workers

import (
	"context"
	"time"

	"leeway/broker/measure"
	"leeway/broker/redisstore"
	"leeway/slackgate"
	"leeway/workers/attempt"
	"leeway/workers/backend"
)

// measure counts the calls of a job for the gate. A count that is lost is no harm.
func (p *Pool) measure(job string, samples ...redisstore.Sample) {
	if err := p.Store.Measure(context.Background(), job, samples...); err != nil {
		p.Log.Debug("latency not counted", "path", p.Path.String(), "error", err)
	}
}

// poolSamples are what a job tells of its pool: the time to its first answer
// text, over all its attempts, and how long it held its slot.
func poolSamples(path slackgate.Path, hasText bool, firstByte, held time.Duration, whole bool) []redisstore.Sample {
	name := measure.PoolName(path)
	fb := redisstore.Sample{Series: redisstore.Series{Name: name, Kind: redisstore.FirstByte}, MS: firstByte.Milliseconds()}
	if !hasText {
		fb.MS, fb.Cut = held.Milliseconds(), true
	}
	return []redisstore.Sample{fb, {
		Series: redisstore.Series{Name: name, Kind: redisstore.Hold}, MS: held.Milliseconds(), Cut: !whole,
	}}
}

// callSamples are what one call tells of its backend. A backend that turned
// the call away says nothing of how long its answers take.
func callSamples(call *attempt.Call, s *attempt.Settlement) []redisstore.Sample {
	if !s.HasText && !s.Censored {
		return nil
	}
	name := measure.BackendName(call.Backend)
	return []redisstore.Sample{
		{Series: redisstore.Series{Name: name, Kind: redisstore.FirstByte}, MS: s.FirstByte.Milliseconds(), Cut: s.Censored},
		{Series: redisstore.Series{Name: name, Kind: redisstore.Hold}, MS: s.Hold.Milliseconds(), Cut: s.Reason != ""},
	}
}

// tells reports whether a job's end says anything about its pool's latency: an
// answer came, or it was cut for want of one. Refusals and errors that came
// back at once do not.
func tells(r *attempt.Result) bool {
	if r.HasText {
		return true
	}
	for i := range r.Attempts {
		if r.Attempts[i].Censored {
			return true
		}
	}
	return r.Reason == backend.ReasonDeadline
}
