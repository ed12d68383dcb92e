package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"leeway/broker"
	"leeway/broker/config"
	"leeway/cmd/app"
	"leeway/slackgate"
	"leeway/workers/attempt"
	"leeway/workers/backend"
)

type backendsCmd struct {
	Test backendsTestCmd `cmd:"" help:"Send a tiny request to each backend of a configuration. Says what it answered, what that cost and which option to set. Exit 1: one did not answer."`
}

// backendsTestCmd calls each backend of a configuration once, as a worker would.
//
// What it spends is not booked. A row of the ledger needs the deployment's Redis,
// in a layout that this program knows, and this is what one runs on a file before
// there is a deployment. The cost of each call is printed instead.
type backendsTestCmd struct {
	Config  string        `env:"LEEWAY_CONFIG" required:"" placeholder:"FILE" help:"Configuration whose backends are tested."`
	Backend string        `placeholder:"NAME" help:"Test this backend alone."`
	Class   string        `placeholder:"NAME" help:"Ask with this class's options over the backends' own."`
	Timeout time.Duration `default:"30s" help:"Bound of one call."`
	JSON    bool          `name:"json" help:"Print one JSON line a backend instead."`
}

// backendTest is what came of one backend's test. Times are milliseconds, money is
// micro-units of the currency.
type backendTest struct {
	Backend  string         `json:"backend"`
	Path     slackgate.Path `json:"path"`
	Protocol string         `json:"protocol"`
	Model    string         `json:"model"`
	Host     string         `json:"host"`
	// Answered is set when it brought a whole answer, which Answer begins with.
	Answered bool   `json:"answered"`
	Answer   string `json:"answer,omitempty"`
	Finish   string `json:"finish,omitempty"`
	// Error says why it did not, and Advice what to change in its options; that
	// may be there with an answer too.
	Error  string `json:"error,omitempty"`
	Advice string `json:"advice,omitempty"`
	// FirstByteMS is -1 where no answer text came.
	FirstByteMS int64        `json:"first_byte_ms"`
	ElapsedMS   int64        `json:"elapsed_ms"`
	Usage       broker.Usage `json:"usage"`
	// CostMicro is what the call costs by the price that holds now, or by what the
	// backend says of it: what a worker would book.
	CostMicro int64  `json:"cost_micro"`
	Currency  string `json:"currency"`
}

// Run tests the backends one after the other.
func (c *backendsTestCmd) Run(ctx context.Context, out io.Writer) error {
	cfg, err := config.LoadToMeasure(c.Config, os.Environ())
	if err != nil {
		return err
	}
	if _, ok := cfg.Classes[c.Class]; !ok && c.Class != "" {
		return fmt.Errorf("--class: %.64q is not in %s", c.Class, c.Config)
	}
	if c.Timeout <= 0 {
		return errors.New("--timeout: must be above 0")
	}
	tested, answered, cost := 0, 0, map[string]int64{}
	for _, path := range slackgate.Paths {
		backends := cfg.Pool(path).Backends
		for i := range backends {
			b := &backends[i]
			if c.Backend != "" && b.Name != c.Backend {
				continue
			}
			t := c.test(ctx, cfg, b)
			t.Path = path
			tested++
			cost[t.Currency] += t.CostMicro
			if t.Answered {
				answered++
			}
			if err := c.print(out, &t); err != nil {
				return err
			}
		}
	}
	switch {
	case tested == 0 && c.Backend != "":
		return fmt.Errorf("--backend: %.64q is not in %s", c.Backend, c.Config)
	case tested == 0:
		return fmt.Errorf("%s has no backends", c.Config)
	}
	if !c.JSON {
		fmt.Fprintf(out, "%d of %d answered; in all %s, booked nowhere\n", answered, tested, amounts(cost))
	}
	if answered < tested {
		return exitError(1)
	}
	return nil
}

// amounts are sums of money by currency.
func amounts(micro map[string]int64) string {
	var parts []string
	for _, currency := range slices.Sorted(maps.Keys(micro)) {
		parts = append(parts, fmt.Sprintf("%d micro-%s", micro[currency], currency))
	}
	return strings.Join(parts, ", ")
}

// test makes the call.
func (c *backendsTestCmd) test(ctx context.Context, cfg *config.Config, b *config.Backend) backendTest {
	price := backend.Price(*b.PriceAt(time.Now()))
	t := backendTest{Backend: b.Name, Protocol: b.Protocol, Model: b.Model, FirstByteMS: -1, Currency: price.Currency}
	if u, err := url.Parse(b.URL); err == nil {
		t.Host = u.Host
	}
	client, err := app.NewClient(b, nil)
	if err != nil { // its key is not where the file says
		t.Error = err.Error()
		return t
	}
	defer client.Close()
	id := "test-" + uuid.NewString()
	req := backend.Request{
		RequestID: id, IdempotencyKey: id, Text: attempt.ProbeText, MaxOutputTokens: attempt.ProbeMaxTokens,
		Options: backend.Options(cfg.OptionsFor(c.Class, b)),
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	begun := time.Now()
	a, err := client.Generate(ctx, req, backend.Observer{})
	t.ElapsedMS = time.Since(begun).Milliseconds()
	t.Answered, t.Answer, t.Finish, t.Usage = a.Whole, excerpt(a.Text), string(a.Finish), a.Usage.Usage
	if a.HasText {
		t.FirstByteMS = a.FirstByte.Milliseconds()
	}
	largest := price.LargestCostMicro(req.InputTokens(), req.MaxOutputTokens, req.Options.Allowance())
	t.CostMicro, _ = price.CostMicro(a.Usage, largest)
	if t.Usage.Known == broker.KnownUnknown {
		t.CostMicro = max(t.CostMicro, largest)
	}
	if e, ok := errors.AsType[*backend.Error](err); ok {
		said := *e
		said.Advice = ""
		t.Error, t.Advice = said.Error(), e.Advice
	}
	if t.Answered && t.Usage.ReasoningTokens > 0 && req.Options.Allowance() == 0 {
		t.Advice = "it reasons, within the output limit of its jobs: keep options.reasoning_tokens for that"
	}
	return t
}

// excerpt is the beginning of an answer, fit for a line.
func excerpt(s string) string { return fmt.Sprintf("%.60s", strings.Join(strings.Fields(s), " ")) }

// print shows one backend's test.
func (c *backendsTestCmd) print(out io.Writer, t *backendTest) error {
	if c.JSON {
		return printJSON(out, t)
	}
	fmt.Fprintf(out, "%s %s: %s, model %s, at %s\n", t.Path, t.Backend, t.Protocol, t.Model, t.Host)
	if t.Answered {
		fmt.Fprintf(out, "  answered %q (%s)\n", t.Answer, t.Finish)
	} else {
		fmt.Fprintf(out, "  no answer: %q\n", t.Error)
	}
	if t.Advice != "" {
		fmt.Fprintf(out, "  advice: %s\n", t.Advice)
	}
	first := "no first byte"
	if t.FirstByteMS >= 0 {
		first = fmt.Sprintf("first byte after %d ms", t.FirstByteMS)
	}
	u := &t.Usage
	fmt.Fprintf(out, "  %s, over after %d ms; tokens %d in, %d out, of them %d reasoning (%s); cost %d micro-%s\n",
		first, t.ElapsedMS, u.InputTokens, u.OutputTokens, u.ReasoningTokens, orDash(string(u.Known)), t.CostMicro, t.Currency)
	return nil
}
