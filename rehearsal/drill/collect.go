package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"leeway/broker"
	"leeway/broker/background"
	"leeway/broker/client"
	"leeway/broker/ledger"
	"leeway/broker/wire"
	"leeway/slackgate"
)

// idleLimit is how long a backend may take to notice that a client has left, a
// probe among them, which stays for half a minute with a backend that hangs.
const idleLimit = 35 * time.Second

// collect reads ledgers, backends and checks once all jobs have ended.
func (r *player) collect(ctx context.Context, fromMS int64) error {
	for i := range r.run.Jobs {
		if id := r.run.Jobs[i].ID; id != "" {
			r.byID[id] = i
		}
	}
	if err := r.ledgers(ctx, fromMS); err != nil {
		return err
	}
	if err := r.calls(ctx); err != nil {
		return err
	}
	r.leftBehind(ctx)
	report, err := r.checkLedgers(ctx)
	if err != nil {
		return err
	}
	for _, i := range report.Items {
		c := Check{OK: i.OK, Detail: i.Detail, Before: !i.OK && r.troubled[i.Name]}
		if len(i.Problems) > 0 {
			c.Detail += ": " + i.Problems[0]
		}
		r.run.Checks = append(r.run.Checks, c)
	}
	slices.SortStableFunc(r.run.Done, func(a, b Done) int { return int(a.AtMS - b.AtMS) })
	return nil
}

func (r *player) checkLedgers(ctx context.Context) (*ledger.Report, error) {
	report, err := r.target.Client.CheckLedgers(ctx)
	if err != nil {
		return nil, fmt.Errorf("the ledgers could not be checked: %w", err)
	}
	return report, nil
}

// rowsOf streams a ledger's rows from a time on.
func rowsOf[T any](ctx context.Context, c *client.Client, k ledger.Kind, fromMS int64, each func(*T)) error {
	pr, pw := io.Pipe()
	go func() {
		q := map[string][]string{"from_ms": {strconv.FormatInt(fromMS, 10)}}
		_ = pw.CloseWithError(c.StreamRows(ctx, k, ledger.NDJSON, q, pw))
	}()
	defer func() { _ = pr.Close() }()
	for dec := json.NewDecoder(pr); ; {
		var row T
		err := dec.Decode(&row)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s ledger: %w", k, err)
		}
		each(&row)
	}
}

// books are the two ledgers of a run, by path.
type books struct {
	spend  [slackgate.NumPaths]SpendSum
	misses [slackgate.NumPaths]map[broker.Cause]int64
}

func (b *books) miss(path slackgate.Path, cause broker.Cause) {
	if b.misses[path] == nil {
		b.misses[path] = map[broker.Cause]int64{}
	}
	b.misses[path][cause]++
}

func (b *books) pay(row *broker.SpendRow) {
	s := &b.spend[row.Path]
	s.Attempts++
	s.InputTokens += row.InputTokens
	s.OutputTokens += row.OutputTokens
	if row.Known == broker.KnownUnknown {
		s.Unknown++
	}
	if row.CostMicro != 0 {
		if s.CostMicro == nil {
			s.CostMicro = map[string]int64{}
		}
		s.CostMicro[row.Currency] += row.CostMicro
	}
}

// sums are the books as the evidence has them.
func (b *books) sums() (spend []SpendSum, misses []MissSum) {
	for _, path := range slackgate.Paths {
		s := b.spend[path]
		s.Path = path
		if s.CostMicro == nil {
			s.CostMicro = map[string]int64{}
		}
		spend = append(spend, s)
		for _, cause := range broker.Causes {
			if n := b.misses[path][cause]; n > 0 {
				misses = append(misses, MissSum{path, cause, n})
			}
		}
	}
	return spend, misses
}

// ledgers reads what the two ledgers have of this run's jobs.
func (r *player) ledgers(ctx context.Context, fromMS int64) error {
	var b books
	err := rowsOf(ctx, r.target.Client, ledger.Spend, fromMS, func(row *broker.SpendRow) {
		if _, ours := r.byID[row.JobID]; ours {
			b.pay(row)
		}
	})
	if err == nil {
		err = rowsOf(ctx, r.target.Client, ledger.Misses, fromMS, func(row *broker.MissRow) {
			if _, ours := r.byID[row.JobID]; ours {
				b.miss(row.Path, row.Cause)
			}
		})
	}
	r.run.Spend, r.run.Misses = b.sums()
	return err
}

// calls reads what the lab backends saw of this run.
func (r *player) calls(ctx context.Context) error {
	if !r.target.WholeRecord {
		return nil // a part would look like the whole
	}
	r.run.Calls = []Call{}
	for name, l := range r.target.Labs {
		attempts, err := l.Attempts(ctx, r.seqs[name])
		if err != nil {
			return fmt.Errorf("lab %s: %w", name, err)
		}
		for _, a := range attempts {
			cut := strings.LastIndexByte(a.RequestID, '-') // between the job's id and the attempt's number
			if i, ours := r.byID[a.RequestID[:max(cut, 0)]]; ours {
				r.run.Calls = append(r.run.Calls, Call{
					Backend: name, Job: i, AtMS: a.ReceivedAtMS - r.begin.UnixMilli(), FirstMS: int64(a.FirstByteMS),
					ElapsedMS: int64(a.ElapsedMS), Ended: string(a.Ended), Fault: a.Fault,
				})
			}
		}
	}
	slices.SortFunc(r.run.Calls, func(a, b Call) int { return int(a.AtMS - b.AtMS) })
	return nil
}

// leftBehind checks that the labs are healthy and idle and that nothing waits.
func (r *player) leftBehind(ctx context.Context) {
	check := func(ok bool, format string, args ...any) {
		r.run.Checks = append(r.run.Checks, Check{OK: ok, Detail: fmt.Sprintf(format, args...)})
	}
	for _, d := range r.run.Done {
		if d.Error != "" {
			check(false, "%s: %s", d.What, d.Error)
		}
	}
	healthy, idle := true, true
	labs := r.target.Labs
	for _, l := range labs {
		f, err := l.Fault(ctx)
		healthy = healthy && err == nil && f.Name == ""
		idle = idle && r.idle(ctx, l)
	}
	if len(labs) > 0 {
		check(healthy, "the lab is back to healthy: %d backends", len(labs))
		check(idle, "no backend still works for a job")
	}
	open := 0
	for i := range r.run.Jobs {
		if j := &r.run.Jobs[i]; j.Admitted() && j.Outcome == "" {
			open++
		}
	}
	if r.target.Alone {
		pools, err := r.target.Client.Pools(ctx)
		inFlight := 0
		if err == nil {
			for _, v := range pools.Pools {
				inFlight += v.Waiting + v.Running
			}
		}
		check(err == nil && inFlight == 0 && open == 0, "every admitted job has ended: %d have not, %d are in flight", open, inFlight)
	} else {
		check(open == 0, "every admitted job of the drill has ended: %d have not", open)
	}
	flags, err := r.target.Client.Flags(ctx)
	set := slices.ContainsFunc(flags, func(f wire.FlagView) bool { return strings.Contains(f.By, actor) && f.Source == "flag" })
	check(err == nil && !set, "no flag of the drill is still set")
}

// idle waits a little for a backend that a client has just left.
func (r *player) idle(ctx context.Context, l Control) bool {
	ctx, cancel := context.WithTimeout(ctx, idleLimit)
	defer cancel()
	for {
		s, err := l.State(ctx)
		if err != nil {
			return false
		}
		if s.InService == 0 && s.Waiting == 0 {
			return true
		}
		if background.Sleep(ctx, askAgain) != nil {
			return false
		}
	}
}
