package dashboards

import "github.com/grafana/grafana-foundation-sdk/go/units"

// Shared numbers are the same on every replica: max over replicas first. What a
// process counts itself is summed. broker/metrics says which is which.

// usable is the number to look at, beside the one that deceives. It stands
// first on every dashboard.
func usable() panel {
	const ended = `sum(max by (path, outcome) (rate(job_outcome_total{outcome!="cancelled"}[$__rate_interval])))`
	return panel{
		title: "Usable beside success",
		description: "Of the admitted jobs that ended: usable (in time, whole, not empty, what a producer can use) beside success " +
			"(an answer came, in time or not). The gap is work that was paid for and that nobody reads.",
		unit: units.PercentUnit,
		queries: []query{
			{`sum(max by (path, outcome) (rate(job_outcome_total{outcome="usable"}[$__rate_interval]))) / ` + ended, "usable"},
			{`sum(max by (path, outcome) (rate(job_outcome_total{outcome=~"usable|late|empty"}[$__rate_interval]))) / ` + ended, "success"},
		},
	}
}

// admission shows what the gate decides and what it sees.
func admission() *board {
	return &board{
		file: "admission", uid: "leeway-admission", title: "Leeway: Admission",
		description: "What the gate decides, and the numbers it decides by. Trust slack first, then queue age, then utilization.",
		rows: [][2]panel{
			{usable(), {
				title:       "Decisions",
				description: "Submissions by the path they were given. Rejects were told at once and are no misses.",
				unit:        units.RequestsPerSecond,
				queries:     []query{{`sum by (path) (rate(job_decision_total[$__rate_interval]))`, "{{path}}"}},
			}},
			{{
				title:       "Slack at admission",
				description: "Time between now and the deadline less the reserve, as submissions arrive. Zero or less: nothing can be promised.",
				unit:        units.Milliseconds,
				draw:        heat,
				queries:     []query{{`sum by (le) (increase(job_remaining_slack_ms_bucket{stage="admit"}[$__rate_interval]))`, "{{le}}"}},
			}, {
				title:       "Queue age",
				description: "How long the oldest job that still waits has waited. A job in service does not count.",
				unit:        units.Milliseconds,
				queries:     []query{{`max by (path) (job_queue_age_ms)`, "{{path}}"}},
			}},
			{{
				title:       "Slack at admission, median and lowest twentieth",
				description: "The same slack as two lines. Compare it with queue age plus the pool's first byte.",
				unit:        units.Milliseconds,
				queries: []query{
					{`histogram_quantile(0.5, sum by (le) (rate(job_remaining_slack_ms_bucket{stage="admit"}[$__rate_interval])))`, "median"},
					{`histogram_quantile(0.05, sum by (le) (rate(job_remaining_slack_ms_bucket{stage="admit"}[$__rate_interval])))`, "lowest twentieth"},
				},
			}, {
				title:       "Slack of the most urgent waiting job",
				description: "Below the pool's first byte it will be dropped before a backend is called. No line: nothing waits.",
				unit:        units.Milliseconds,
				queries:     []query{{`max by (path) (job_smallest_slack_ms)`, "{{path}}"}},
			}},
			{{
				title:       "Refusals by reason",
				description: "Why submissions were not admitted. reject_no_slack is the gate at work; gate_unavailable and pool_down are not.",
				unit:        units.RequestsPerSecond,
				queries:     []query{{`sum by (reason) (rate(job_reject_total[$__rate_interval]))`, "{{reason}}"}},
			}, {
				title: "Predicted against actual wait",
				description: "95th percentile of the wait for a worker as predicted at admission, and as it came about. " +
					"An actual wait above the predicted one breaks promises. The seed rule predicts nothing.",
				unit: units.Milliseconds,
				queries: []query{
					{`histogram_quantile(0.95, sum by (path, le) (rate(job_predicted_wait_ms_bucket[$__rate_interval])))`, "{{path}} predicted"},
					{`histogram_quantile(0.95, sum by (path, le) (rate(job_queue_wait_ms_bucket[$__rate_interval])))`, "{{path}} actual"},
				},
			}},
			{{
				title:       "Jobs waiting and in service",
				description: "Admitted and unfinished jobs. A drain is over when both lines of its pool are at zero.",
				unit:        units.Short,
				queries: []query{
					{`max by (path) (job_waiting)`, "{{path}} waiting"},
					{`max by (path) (job_running)`, "{{path}} in service"},
				},
			}, {
				title:       "Slots",
				description: "Slots of living workers. At zero the pool is closed (pool_down).",
				unit:        units.Short,
				queries:     []query{{`max by (path) (job_pool_capacity)`, "{{path}}"}},
			}},
			{{
				title:       "The gate reads its inputs",
				description: "Whether Redis answered each process's scrape. At no, submissions get 503 gate_unavailable.",
				unit:        yesNo,
				draw:        states,
				queries:     []query{{`1 - min by (instance) (leeway_store_up)`, "{{instance}} cannot read"}},
			}, {
				title:       "Share of submissions refused",
				description: "For the incident note: the reject ratio.",
				unit:        units.PercentUnit,
				queries: []query{{
					`sum(rate(job_decision_total{path="reject"}[$__rate_interval])) / sum(rate(job_decision_total[$__rate_interval]))`, "refused",
				}},
			}},
		},
	}
}

// ledgers shows spend on the left and misses on the right, never on one axis.
func ledgers() *board {
	return &board{
		file: "ledgers", uid: "leeway-ledgers", title: "Leeway: Ledgers",
		description: "Spend on the left, deadline misses on the right, never on one axis. Spend that falls while misses rise is the page.",
		rows: [][2]panel{
			{usable(), {
				title:       "Jobs ended by outcome",
				description: "Every admitted job has exactly one outcome. All but usable and cancelled are misses.",
				unit:        units.RequestsPerSecond,
				queries:     []query{{`sum by (outcome) (max by (path, outcome) (rate(job_outcome_total[$__rate_interval])))`, "{{outcome}}"}},
			}},
			{{
				title:       "Spend: tokens that cost money",
				description: "Input and output tokens that a price applies to. Near zero is not a recovery: look at the misses on the right.",
				unit:        units.CountsPerSecond,
				queries:     []query{{`max by (path) (rate(job_token_spend_total[$__rate_interval]))`, "{{path}}"}},
			}, {
				title:       "Misses by path",
				description: "Deadline misses. Those on path reject came without slack: a producer's clock or deadline is wrong.",
				unit:        units.EventsPerSecond,
				queries:     []query{{`max by (path) (rate(job_deadline_miss_total[$__rate_interval]))`, "{{path}}"}},
			}},
			{{
				title:       "Spend against its baseline",
				description: "What the page compares: spend over five minutes, and half of its week's baseline. The baseline needs half an hour of spending.",
				unit:        units.CountsPerSecond,
				queries: []query{
					{`leeway:spend_tokens:rate5m`, "spend"},
					{`0.5 * leeway:spend_tokens:baseline7d`, "falls below this"},
				},
			}, {
				title:       "Misses against their baseline",
				description: "What the page compares: misses over five minutes on paths paid and free, and twice their week's baseline or the floor.",
				unit:        units.EventsPerSecond,
				queries: []query{
					{`leeway:misses:rate5m`, "misses"},
					{`clamp_min(2 * leeway:misses:baseline7d, 0.02)`, "rises above this"},
				},
			}},
			{{
				title:       "Spend: cost",
				description: "Cost booked, in micro-units of the currency. Read by no paging rule.",
				unit:        units.CountsPerSecond,
				queries:     []query{{`sum by (currency) (max by (path, currency) (rate(job_cost_micro_total[$__rate_interval])))`, "micro-{{currency}} per second"}},
			}, {
				title:       "Misses by cause",
				description: "Why promises were missed.",
				unit:        units.EventsPerSecond,
				queries:     []query{{`sum by (cause) (max by (path, cause) (rate(job_deadline_miss_cause_total[$__rate_interval])))`, "{{cause}}"}},
			}},
			{{
				title:       "Spend: how tokens are known",
				description: "Backend calls settled, by whether the backend reported tokens, they were estimated, nobody knows (a call that was cut), or nothing was billed (a call that was turned away).",
				unit:        units.CountsPerSecond,
				queries:     []query{{`sum by (known) (max by (path, known) (rate(job_attempt_total[$__rate_interval])))`, "{{known}}"}},
			}, {
				title:       "Misses as a share of jobs ended",
				description: "Misses on paths paid and free, of the jobs admitted there that ended.",
				unit:        units.PercentUnit,
				queries: []query{{
					`max by (path) (rate(job_deadline_miss_total{path=~"paid|free"}[$__rate_interval])) / sum by (path) (max by (path, outcome) (rate(job_outcome_total[$__rate_interval])))`,
					"{{path}}",
				}},
			}},
			{{
				title:       "Spend: share of each day's budget",
				description: "What is spent today and kept for unfinished jobs, of each budget. At 100 % paid is closed to that producer or class. No line: no budgets.",
				unit:        units.PercentUnit,
				queries: []query{{
					`max by (scope, name) (leeway_budget_spent_micro + leeway_budget_reserved_micro) / (max by (scope, name) (leeway_budget_cap_micro) > 0)`,
					"{{scope}} {{name}}",
				}},
			}, {
				title:       "Refusals for a budget",
				description: "Submissions refused with reject_budget. They were told at once and are no misses.",
				unit:        units.RequestsPerSecond,
				queries:     []query{{`sum(rate(job_reject_total{reason="reject_budget"}[$__rate_interval]))`, "reject_budget"}},
			}},
		},
	}
}

// backends shows what the pools stand on.
func backends() *board {
	return &board{
		file: "backends", uid: "leeway-backends", title: "Leeway: Backends",
		description: "How fast backends are, as declared and as measured, and whether they may be called. Utilization comes last: it lies while one worker blocks on a first byte.",
		rows: [][2]panel{
			{usable(), {
				title:       "Backends that may not be called",
				description: "States of a breaker other than closed: open (jobs and a probe failed), half_open (in doubt: one call decides), held (asked for rest), out (taken out, or it refuses its key or everything).",
				unit:        yesNo,
				draw:        states,
				queries:     []query{{`max by (backend, state) (leeway_backend_state{state!="closed"})`, "{{backend}} {{state}}"}},
			}},
			{{
				title:       "First byte p95, declared and measured",
				description: "95th percentile of the first byte of answer text, per pool and backend. The gate goes by the measured one.",
				unit:        units.Milliseconds,
				queries:     []query{{`max by (subject, source) (leeway_first_byte_p95_ms)`, "{{subject}} {{source}}"}},
			}, {
				title:       "First byte as it came",
				description: "95th percentile over the jobs of the interval. Cut calls are missing here: the measured p95 on the left counts them.",
				unit:        units.Milliseconds,
				queries:     []query{{`histogram_quantile(0.95, sum by (path, le) (rate(job_first_byte_ms_bucket[$__rate_interval])))`, "{{path}}"}},
			}},
			{{
				title:       "Last byte p95, declared and measured",
				description: "95th percentile of the time a slot stays taken.",
				unit:        units.Milliseconds,
				queries:     []query{{`max by (subject, source) (leeway_hold_p95_ms)`, "{{subject}} {{source}}"}},
			}, {
				title:       "How the first byte p95 is known",
				description: "declared; floored (measured, with the declared one as a floor until there are samples enough, or where too many were cut); measured; not_identified (too many calls were cut to say).",
				unit:        yesNo,
				draw:        states,
				queries:     []query{{`max by (subject, state) (leeway_latency_state{state!="declared"})`, "{{subject}} {{state}}"}},
			}},
			{{
				title:       "Calls measured",
				description: "Calls in the window that the measured p95 is read from.",
				unit:        units.Short,
				queries:     []query{{`max by (subject) (leeway_latency_samples)`, "{{subject}}"}},
			}, {
				title:       "Calls settled",
				description: "Backend calls by pool, failed and late ones included.",
				unit:        units.RequestsPerSecond,
				queries:     []query{{`sum by (path) (max by (path, known) (rate(job_attempt_total[$__rate_interval])))`, "{{path}}"}},
			}},
			{{
				title:       "Utilization, the last signal to trust",
				description: "Slots taken, of the slots of living workers. Do not enlarge a pool because this is low.",
				unit:        units.PercentUnit,
				queries:     []query{{`max by (path) (job_running) / (max by (path) (job_pool_capacity) > 0)`, "{{path}}"}},
			}, {
				title:       "Tokens",
				description: "Tokens in and out, whether or not they cost money.",
				unit:        units.CountsPerSecond,
				queries:     []query{{`max by (path, kind) (rate(job_tokens_total[$__rate_interval]))`, "{{path}} {{kind}}"}},
			}},
		},
	}
}
