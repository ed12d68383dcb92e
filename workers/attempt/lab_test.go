package attempt

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"leeway/broker"
	"leeway/rehearsal/lab"
	"leeway/rehearsal/pipenet"
	"leeway/workers/backend"
)

// labBackend starts a lab backend inside the bubble and returns the client's
// side of it, for the model named.
func (w *world) labBackend(name string, cfg lab.Config, model string) (backend.Config, *lab.Server) {
	w.t.Helper()
	s, err := lab.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	l := pipenet.Listen()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(ctx, l, nil) }()
	tr := &http.Transport{DialContext: l.DialContext, DisableCompression: true}
	w.t.Cleanup(func() { tr.CloseIdleConnections(); cancel(); s.Close(); <-done })
	return backend.Config{Name: name, BaseURL: "http://" + name + "/v1", Model: model, Transport: tr, Stall: 4 * second}, s
}

// labRow is what must come of a fault the lab plays, met by a job of 12 s.
type labRow struct {
	// with a healthy fallback: how often each backend is called
	primary, fallback int
	usage             broker.Known   // of the first attempt at the primary
	outcome           broker.Outcome // without a fallback
	reason            backend.Reason
}

const (
	reported  = broker.KnownReported
	estimated = broker.KnownEstimated
	unknown   = broker.KnownUnknown
	none      = notBilled
)

// labRows is the table of backend faults, by the name the lab plays them under.
var labRows = map[string]labRow{
	"ok":                     {1, 0, reported, broker.OutcomeUsable, ""},
	"retry-after":            {2, 0, none, broker.OutcomeUsable, ""},
	"throttled":              {1, 1, none, broker.OutcomeFailed, backend.ReasonRateLimited},
	"flaky":                  {2, 0, none, broker.OutcomeUsable, ""},
	"down":                   {1, 1, none, broker.OutcomeFailed, backend.ReasonUpstreamError},
	"down.refused":           {1, 1, unknown, broker.OutcomeFailed, backend.ReasonReset}, // by model name the lab can only reset
	"flap":                   {1, 1, none, broker.OutcomeFailed, backend.ReasonUpstreamError},
	"loading":                {1, 1, none, broker.OutcomeUsable, ""},
	"reset":                  {1, 1, unknown, broker.OutcomeFailed, backend.ReasonReset},
	"silent":                 {1, 1, unknown, broker.OutcomeLate, backend.ReasonFirstByte},
	"headers-only":           {1, 1, unknown, broker.OutcomeLate, backend.ReasonFirstByte},
	"slow.6s":                {1, 0, reported, broker.OutcomeUsable, ""},
	"slow.20s":               {1, 1, unknown, broker.OutcomeLate, backend.ReasonFirstByte},
	"stall":                  {1, 1, estimated, broker.OutcomeTruncated, backend.ReasonStall},
	"drip":                   {1, 1, estimated, broker.OutcomeTruncated, backend.ReasonStall},
	"cut":                    {1, 1, estimated, broker.OutcomeTruncated, backend.ReasonTruncated},
	"bad-chunk":              {1, 1, estimated, broker.OutcomeFailed, backend.ReasonBadAnswer},
	"no-done":                {1, 0, reported, broker.OutcomeUsable, ""},
	"finish-early":           {1, 0, reported, broker.OutcomeUsable, ""},
	"comments":               {1, 0, reported, broker.OutcomeUsable, ""},
	"no-space":               {1, 0, reported, broker.OutcomeUsable, ""},
	"mislabelled":            {1, 0, reported, broker.OutcomeUsable, ""},
	"pings":                  {1, 0, reported, broker.OutcomeUsable, ""},
	"choice-index":           {1, 0, reported, broker.OutcomeUsable, ""},
	"empty-error":            {1, 0, reported, broker.OutcomeUsable, ""},
	"split-pair":             {1, 0, reported, broker.OutcomeUsable, ""},
	"big-line.100KiB":        {1, 0, reported, broker.OutcomeUsable, ""},
	"big-line.12MiB":         {1, 1, estimated, broker.OutcomeFailed, backend.ReasonTooLarge},
	"big-line.lines":         {1, 0, reported, broker.OutcomeUsable, ""}, // a million comments, within the bound
	"empty.content":          {1, 1, reported, broker.OutcomeEmpty, backend.ReasonEmpty},
	"empty.invisible":        {1, 1, reported, broker.OutcomeEmpty, backend.ReasonEmpty},
	"empty.body":             {1, 1, unknown, broker.OutcomeEmpty, backend.ReasonEmpty},
	"reasoning-only":         {1, 1, reported, broker.OutcomeEmpty, backend.ReasonEmpty},
	"one-token":              {1, 0, reported, broker.OutcomeUsable, ""},
	"tool-only":              {1, 1, reported, broker.OutcomeFailed, backend.ReasonToolCall},
	"error-in-200":           {2, 1, unknown, broker.OutcomeFailed, backend.ReasonUpstreamError},
	"error-in-200.midstream": {2, 1, estimated, broker.OutcomeFailed, backend.ReasonUpstreamError},
	"context-length":         {1, 1, none, broker.OutcomeFailed, backend.ReasonContextLength},
	"long-text":              {1, 0, reported, broker.OutcomeUsable, ""}, // the text is short, and has no SELECT
	"firewall":               {1, 0, reported, broker.OutcomeUsable, ""},
	"firewall.all":           {1, 1, none, broker.OutcomeFailed, backend.ReasonBadRequest},
	"no-prefill":             {1, 0, reported, broker.OutcomeUsable, ""}, // nothing is ever prefilled
	"no-max-tokens":          {1, 0, reported, broker.OutcomeUsable, ""}, // the job has no limit
	"no-stream-options":      {1, 1, none, broker.OutcomeFailed, backend.ReasonUnsupported},
	"refused.policy":         {1, 0, none, broker.OutcomeFailed, backend.ReasonRefused},
	"refused.filter":         {1, 0, none, broker.OutcomeFailed, backend.ReasonRefused},
	"refused.finish":         {1, 0, reported, broker.OutcomeFailed, backend.ReasonRefused},
	"refused.refusal":        {1, 0, reported, broker.OutcomeFailed, backend.ReasonRefused},
	"auth":                   {1, 1, none, broker.OutcomeFailed, backend.ReasonAuth},
	"usage-forms":            {1, 0, reported, broker.OutcomeUsable, ""},
	"usage-missing":          {1, 0, estimated, broker.OutcomeUsable, ""},
	"usage-absurd":           {1, 0, estimated, broker.OutcomeUsable, ""},
	"usage-absurd.strings":   {1, 0, reported, broker.OutcomeUsable, ""},
	"usage-absurd.details":   {1, 0, reported, broker.OutcomeUsable, ""},
	"usage-absurd.cached":    {1, 0, reported, broker.OutcomeUsable, ""},
	"usage-apart":            {1, 0, reported, broker.OutcomeUsable, ""},
	"gzip.declared":          {1, 0, reported, broker.OutcomeUsable, ""},
	"gzip.undeclared":        {1, 1, unknown, broker.OutcomeFailed, backend.ReasonBadAnswer},
	"prose-error":            {1, 0, reported, broker.OutcomeUsable, ""},
	"paid-in-disguise":       {1, 0, reported, broker.OutcomeUsable, ""},
	"cost-absurd":            {1, 0, reported, broker.OutcomeUsable, ""},
	"cost-absurd.zeros":      {1, 0, estimated, broker.OutcomeUsable, ""},
	"not-an-answer":          {1, 1, unknown, broker.OutcomeFailed, backend.ReasonBadAnswer},
	"redirect":               {1, 1, none, broker.OutcomeFailed, backend.ReasonBadAnswer},
}

// rowOf is the row of a fault: its own, or that of its kind.
func rowOf(name string) (labRow, bool) {
	if r, ok := labRows[name]; ok {
		return r, true
	}
	kind, _, _ := strings.Cut(name, ".")
	r, ok := labRows[kind]
	return r, ok
}

// Every fault the lab can play, judged from both sides.
func TestLabFaults(t *testing.T) {
	for _, k := range lab.FaultKinds() {
		variants := []string{""}
		if len(k.Variants) > 0 {
			variants = k.Variants
		}
		for _, v := range variants {
			name := strings.TrimSuffix(k.Name+"."+v, ".")
			t.Run(name, func(t *testing.T) {
				row, ok := rowOf(name)
				if !ok {
					t.Fatal("the lab plays a fault this table does not know")
				}
				t.Run("with a fallback", func(t *testing.T) { row.withFallback(t, name) })
				t.Run("alone", func(t *testing.T) { row.alone(t, name) })
			})
		}
	}
}

const labText = "The river rose in the night. The old bridge did not hold. Nobody was hurt, because the road had been closed."

func (row labRow) run(w *world, name string, fallback bool) (Result, *ledger, *lab.Server, *lab.Server) {
	cfg, primary := w.labBackend("primary", lab.Config{}, lab.FaultModelPrefix+name)
	bs := []Backend{{Caller: w.client(cfg), P95: 500 * time.Millisecond}}
	other, second_ := w.labBackend("fallback", lab.Config{}, lab.DefaultModel)
	if fallback {
		bs = append(bs, Backend{Caller: w.client(other), P95: 500 * time.Millisecond})
	}
	l := newLedger(w.t)
	j := job(12 * second)
	j.Text = labText
	res, err := w.runner(Config{Backends: bs}).Run(w.t.Context(), j, l.hooks())
	if err != nil {
		w.t.Fatal(err)
	}
	l.check()
	return res, l, primary, second_
}

func (row labRow) withFallback(t *testing.T, name string) {
	bubble(t, func(w *world) {
		res, l, primary, fallback := row.run(w, name, true)
		want := broker.OutcomeUsable
		if row.reason == backend.ReasonRefused {
			want = row.outcome
		}
		if res.Outcome != want || (want == broker.OutcomeUsable && (!res.Whole || strings.TrimSpace(res.Text) == "")) {
			t.Errorf("%s (%s), text %.60q by %s", res.Outcome, res.Reason, res.Text, res.Backend)
		}
		if row.fallback > 0 && !strings.Contains(labText, strings.SplitN(res.Text, "\n", 2)[0]) {
			t.Errorf("text %.60q is not the fallback's", res.Text)
		}
		a, _ := primary.Attempts(0)
		b, _ := fallback.Attempts(0)
		if len(a) != row.primary || len(b) != row.fallback {
			t.Errorf("the backends saw %d and %d calls, want %d and %d", len(a), len(b), row.primary, row.fallback)
		}
		if len(l.settled) != len(a)+len(b) {
			t.Errorf("%d spend rows for %d calls", len(l.settled), len(a)+len(b))
		}
		if u := l.settled[0].Usage; u.Known != row.usage {
			t.Errorf("usage %+v, want %s", u, row.usage)
		}
		for i := 1; i < len(a); i++ {
			// What is tried again is tried after a pause.
			if gap := a[i].ReceivedAtMS - a[i-1].EndAtMS; gap < 90 {
				t.Errorf("called again after %d ms", gap)
			}
		}
	})
}

func (row labRow) alone(t *testing.T, name string) {
	bubble(t, func(w *world) {
		res, l, _, _ := row.run(w, name, false)
		if res.Outcome != row.outcome || res.Reason != row.reason {
			t.Errorf("%s (%s) after %v, want %s (%s)", res.Outcome, res.Reason, res.EndedAt, row.outcome, row.reason)
		}
		if res.EndedAt > 12*second+100*time.Millisecond {
			t.Errorf("ended at %v", res.EndedAt)
		}
		for _, a := range l.settled {
			if a.Usage.InputTokens < 0 || a.Usage.OutputTokens < 0 || a.CostMicro() < 0 {
				t.Errorf("%+v", a)
			}
			// The runner's backends have no price.
			if (name == "paid-in-disguise" || name == "cost-absurd.high") != (a.CostMicro() > 0) {
				t.Errorf("cost %d", a.CostMicro())
			}
		}
	})
}
