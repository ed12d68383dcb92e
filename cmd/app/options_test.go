package app_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"leeway/broker"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/rehearsal/lab"
	"leeway/slackgate"
)

// A backend that refuses max_tokens, as OpenAI's reasoning models do: it is out
// after one job, /v1/pools and the log say which option to set, the other backend
// serves, and a reload with the option brings it back at once.
func TestRefusedOptionIsMendedByReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := ward(t, 2)
		must(t, w.labs["paid-1"].SetFault(lab.Fault{Name: "no-max-tokens"}))
		run := func(by string) {
			t.Helper()
			end := w.wait(w.submit(&client.Job{Text: document}).JobID)
			if end.Outcome != broker.OutcomeUsable || end.Backend != by {
				t.Errorf("%s by %s, want usable by %s", end.Outcome, end.Backend, by)
			}
		}
		run("paid-2")
		w.untilStates("paid-1 out, paid-2 closed", 3*time.Second)
		const advice = "set options.limit_field: max_completion_tokens"
		pools, err := w.client.Pools(t.Context())
		must(t, err)
		if why := pools.Backends[0].Why; why != "unsupported: "+advice {
			t.Errorf("out because of %q", why)
		}
		for _, line := range []string{`"msg":"a backend's options or its class's are wrong"`, `"msg":"backend changed state"`} {
			if !w.log.says(line, advice) {
				t.Errorf("no line of the log has %s and the advice", line)
			}
		}
		run("paid-2")

		next := *w.stage.Config
		next.Pools.Paid.Backends = slices.Clone(next.Pools.Paid.Backends)
		next.Pools.Paid.Backends[0].Options.LimitField = "max_completion_tokens"
		must(t, w.worker.Reload(&next))
		run("paid-1")
		w.untilStates("paid-1 closed, paid-2 closed", 10*time.Second) // what the pool before it reported is soon forgotten
	})
}

// says reports whether a line of the log has all the words.
func (l *logs) says(words ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
			return true
		}
	}
	return false
}

// A class's allowance for reasoning is reserved from its budget, and is part of
// the most that each of its calls may cost.
func TestReasoningIsReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config.Default()
		cfg.Pools.Free.Limit = 0
		cfg.Pools.Paid = config.Pool{Limit: 2, FirstByteP95MS: 800}
		cfg.Classes = config.Classes{
			"summary":  {Prefer: config.PaidOnly},
			"thorough": {Prefer: config.PaidOnly, Options: config.Options{ReasoningTokens: new(5000)}},
		}
		w := start(t, cfg, map[slackgate.Path][]lives{slackgate.Paid: {{profile: "fixed:400ms", tail: "0", slots: 8}}})
		largest := map[string]int64{}
		for _, class := range []string{"summary", "thorough"} {
			if end := w.wait(w.submit(&client.Job{Class: class, Text: document}).JobID); end.Outcome != broker.OutcomeUsable {
				t.Fatalf("%s: %s", class, end.Outcome)
			}
		}
		rows, _, err := w.client.Spend(t.Context())
		must(t, err)
		for i := range rows {
			largest[rows[i].Class] = rows[i].MaxCostMicro
		}
		price := w.stage.Config.Pools.Paid.Backends[0].Price
		if want := 5000 * price.OutputMicroPerMTok / 1_000_000; largest["thorough"]-largest["summary"] != want || want == 0 {
			t.Errorf("the most a call may cost is %v; want %d between them", largest, want)
		}
	})
}
