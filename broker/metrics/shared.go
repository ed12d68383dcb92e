package metrics

import (
	"context"
	"slices"
	"strings"

	"leeway/broker"
	"leeway/broker/config"
	"leeway/broker/store"
	"leeway/slackgate"
)

var (
	storeUp       = gauge("leeway_store_up", "1 if the store answered this scrape.")
	queueAge      = sharedGauge("job_queue_age_ms", "How long the oldest waiting job has waited, in milliseconds.", "path")
	inFlight      = sharedGauge("job_inflight", "Admitted and unfinished jobs.", "path")
	waiting       = sharedGauge("job_waiting", "Jobs waiting for a worker.", "path")
	running       = sharedGauge("job_running", "Jobs in service.", "path")
	capacity      = sharedGauge("job_pool_capacity", "Slots of living workers, at most the pool's limit.", "path")
	smallestSlack = sharedGauge("job_smallest_slack_ms", "Slack of the most urgent waiting job, in milliseconds; absent with nothing waiting.", "path")
	misses        = sharedCounter("job_deadline_miss_total", "Deadline misses.", "path")
	cost          = sharedCounter("job_cost_micro_total", "Cost booked, in micro-units of the currency.", "path", "currency")
)

// pathTotals are the store's sums for each path. Those with a second label have
// a sum for each of its values, which are from a closed set.
var pathTotals = []struct {
	family
	key    string
	values []string
}{
	{misses, "miss", nil},
	{sharedCounter("job_token_spend_total", "Tokens that cost money, in and out.", "path"), "spend_tokens", nil},
	{sharedCounter("job_tokens_total", "Tokens, whether or not they cost money.", "path", "kind"), "tokens", []string{"input", "output"}},
	{
		sharedCounter("job_outcome_total", "Ended jobs by outcome: usable stands beside every other.", "path", "outcome"),
		"outcome", texts(broker.Outcomes[:]),
	},
	{
		sharedCounter("job_deadline_miss_cause_total", "Deadline misses by cause.", "path", "cause"), "miss_cause",
		// A job that arrived without slack was on no path.
		slices.DeleteFunc(texts(broker.Causes[:]), func(c string) bool { return c == string(broker.CauseNoSlack) }),
	},
	{
		sharedCounter("job_attempt_total", "Backend calls settled in the spend ledger, by how their tokens are known.", "path", "known"),
		"known", texts(broker.Knowns[:]),
	},
}

func texts[T ~string](set []T) []string {
	out := make([]string, len(set))
	for i, v := range set {
		out[i] = string(v)
	}
	return out
}

// Share adds what is read from the store at each scrape. What can be booked of the
// backends that cfg has is there from the start.
func (m *Metrics) Share(s store.Store, cfg func() *config.Config, policy func() [slackgate.NumPaths]broker.PoolPolicy) {
	families := []family{storeUp, queueAge, inFlight, waiting, running, capacity, smallestSlack, cost}
	for i := range pathTotals {
		families = append(families, pathTotals[i].family)
	}
	m.collect(func(ctx context.Context, value give) {
		st, err := s.State(ctx, policy())
		var totals broker.Totals
		if err == nil {
			totals, err = s.Totals(ctx)
		}
		value(storeUp, bit(err == nil))
		if err != nil {
			return
		}
		for _, path := range slackgate.Paths {
			p, name := &st.Pools[path], path.String()
			value(queueAge, float64(p.QueueAgeMS), name)
			value(inFlight, float64(p.InFlight()), name)
			value(waiting, float64(p.Waiting), name)
			value(running, float64(p.Running), name)
			value(capacity, float64(p.Capacity), name)
			if slack, ok, err := s.SmallestSlackMS(ctx, path); err == nil && ok {
				value(smallestSlack, float64(slack), name)
			}
			giveTotals(value, totals, name)
			for _, b := range cfg().Pool(path).Backends {
				for _, currency := range b.Currencies() {
					totals["cost_micro:"+name+":"+currency] += 0
				}
			}
		}
		reject := slackgate.Reject.String()
		value(misses, float64(totals["miss:"+reject]), reject)
		for k, n := range totals {
			parts := strings.Split(k, ":")
			if len(parts) == 3 && parts[0] == "cost_micro" {
				value(cost, float64(n), parts[1], parts[2])
			}
		}
	}, families...)
	m.ledgers(s, cfg)
}

func giveTotals(value give, totals broker.Totals, path string) {
	for i := range pathTotals {
		t := &pathTotals[i]
		key := t.key + ":" + path
		if t.values == nil {
			value(t.family, float64(totals[key]), path)
		}
		for _, v := range t.values {
			value(t.family, float64(totals[key+":"+v]), path, v)
		}
	}
}
