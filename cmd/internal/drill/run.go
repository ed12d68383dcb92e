package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"leeway/broker"
	"leeway/broker/background"
	"leeway/broker/client"
	"leeway/broker/httpapi"
	"leeway/broker/ledger"
	"leeway/slackgate"
	"leeway/workers/lab"
)

// Progress is what a live run looks like from outside. It is safe for
// concurrent use.
type Progress struct {
	Offered, Admitted, Rejected, Undecided, Ended, Usable atomic.Int64
}

// Bounds of a live run.
const (
	// afterwardsMS is how long after the last deadline a run waits for its
	// jobs' ends.
	afterwardsMS = 30_000
	// askAgain is the pause before an API is asked again that gave no answer.
	askAgain = 200 * time.Millisecond
	// callMS bounds one submission, and one event.
	callMS = 20_000
)

// text is what the jobs of a drill ask to summarise: a drill rehearses waiting,
// not reading.
const text = "The gate compares what a job must wait with the slack it has left. It refuses what cannot finish. " +
	"A refusal costs milliseconds. A late answer costs a generation that nobody reads. " +
	"Queue age tells how much of the slack is spent already, and remaining slack tells how much more can be. " +
	"Utilisation tells neither: a worker that is blocked on its first byte looks idle."

// player is one live run in progress.
type player struct {
	plan     *Plan
	target   Target
	progress *Progress
	api      *client.Client
	begin    time.Time
	seqs     map[string]int64 // of the labs, before the run

	mu   sync.Mutex // guards run.Done
	run  *Run
	byID map[string]int
}

// Play runs a plan live against a target, open loop: jobs are sent on schedule
// whatever the answers do, and all times count from when a job was to be sent.
// When it returns, the deployment is as it was before.
func Play(ctx context.Context, p *Plan, t Target, progress *Progress) (*Run, error) {
	if why := Cannots(p, t); len(why) > 0 {
		return nil, refuse(p, why)
	}
	schedule, err := p.Schedule()
	if err != nil {
		return nil, err
	}
	length := time.Duration(schedule[len(schedule)-1].AtMS+p.Class.DeadlineMS+afterwardsMS) * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, 2*length) // twice: the contrast comes first
	defer cancel()
	r := &player{plan: p, target: t, progress: progress, api: t.Client(), run: &Run{}, seqs: map[string]int64{}, byID: map[string]int{}}
	if err := r.ready(ctx); err != nil {
		return nil, err
	}
	defer r.mend(context.WithoutCancel(ctx)) // whatever happens
	events := r.eventsBefore(ctx)
	if err := r.direct(ctx, schedule); err != nil {
		return nil, err
	}
	pools, err := r.api.Pools(ctx)
	if err != nil {
		return nil, err
	}
	for _, path := range slackgate.Paths {
		r.run.Slots[path] = pools.Pools[path.String()].Capacity
	}
	if err := r.play(ctx, schedule, events); err != nil {
		return nil, err
	}
	r.mend(context.WithoutCancel(ctx))
	return r.run, r.collect(ctx, pools.NowMS)
}

// ready waits for the API to say that it can admit, and notes where the labs'
// records stand.
func (r *player) ready(ctx context.Context) error {
	const tries = 50
	for try := 1; ; try++ {
		pools, err := r.api.Pools(ctx)
		if err == nil {
			up := 0
			for _, v := range pools.Pools {
				up += v.Capacity
			}
			if up > 0 {
				break
			}
			err = errors.New("no pool has a live worker")
		}
		if try == tries {
			return fmt.Errorf("the deployment is not ready: %w", err)
		}
		if err := background.Sleep(ctx, askAgain); err != nil {
			return err
		}
	}
	for name, l := range r.target.Labs() {
		s, err := l.State(ctx)
		if err != nil {
			return fmt.Errorf("lab %s: %w", name, err)
		}
		r.seqs[name] = s.Attempts
	}
	return nil
}

func (r *player) sinceBegin() int64 { return time.Since(r.begin).Milliseconds() }

// do carries out an event and notes when it was done.
func (r *player) do(ctx context.Context, e *Event) {
	ctx, cancel := context.WithTimeout(ctx, callMS*time.Millisecond)
	defer cancel()
	err := r.target.Do(ctx, e)
	d := Done{AtMS: e.AtMS, What: e.String(), Breaks: e.Do.breaks(), Mends: e.Do.mends()}
	if !r.begin.IsZero() {
		d.AtMS = r.sinceBegin()
	}
	if err != nil {
		d.Error = err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.run.Done = append(r.run.Done, d)
}

// eventsBefore does what is due before the first job and returns the rest.
func (r *player) eventsBefore(ctx context.Context) []Event {
	rest := r.plan.Events
	for len(rest) > 0 && rest[0].AtMS <= 0 {
		r.do(ctx, &rest[0])
		rest = rest[1:]
	}
	return rest
}

// mend undoes whatever the plan may have done. Undoing twice does no harm.
func (r *player) mend(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callMS*time.Millisecond)
	defer cancel()
	undo := map[Action]Action{DoFault: DoHeal, DoFlag: DoClearFlag, DoPauseStore: DoWakeStore}
	for _, e := range r.plan.Events {
		back, ok := undo[e.Do]
		if !ok {
			continue
		}
		err := r.target.Do(ctx, &Event{Do: back, On: e.On})
		var p *httpapi.Problem
		if errors.As(err, &p) && p.Status == http.StatusNotFound {
			continue // cleared already
		}
		if err != nil {
			r.run.Checks = append(r.run.Checks, Check{Detail: fmt.Sprintf("%s could not be undone: %v", e.String(), err)})
		}
	}
}

// play submits on schedule and waits for every end.
func (r *player) play(ctx context.Context, schedule []Arrival, events []Event) error {
	r.run.Jobs = make([]Job, len(schedule))
	r.begin = time.Now()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for i := range events {
			if background.Sleep(ctx, time.Until(r.begin.Add(time.Duration(events[i].AtMS)*time.Millisecond))) != nil {
				return
			}
			r.do(ctx, &events[i])
		}
	})
	for i, a := range schedule {
		due := r.begin.Add(time.Duration(a.AtMS) * time.Millisecond)
		if d := time.Until(due); d > 0 {
			if err := background.Sleep(ctx, d); err != nil {
				return err
			}
		}
		wg.Go(func() { r.one(ctx, &r.run.Jobs[i], &a, due) })
	}
	wg.Wait()
	return ctx.Err()
}

func millisSince(t time.Time) float64 { return float64(time.Since(t).Microseconds()) / 1000 }

// one submits a job and waits for its end. Each job is its own goroutine's.
func (r *player) one(ctx context.Context, j *Job, a *Arrival, due time.Time) {
	j.AtMS, j.LagMS, j.FirstByteMS = a.AtMS, millisSince(due), -1
	r.progress.Offered.Add(1)
	sub := client.Job{Class: r.target.Class(), Text: text, DeadlineMS: r.plan.Class.DeadlineMS, MaxOutputTokens: a.OutputTokens, Producer: "drill"}
	bounded, cancel := context.WithTimeout(ctx, callMS*time.Millisecond)
	v, err := r.api.Submit(bounded, &sub)
	cancel()
	j.ToldMS = millisSince(due)
	var p *httpapi.Problem
	if errors.As(err, &p) && p.Verdict != nil {
		v, err = p.Verdict, nil
	}
	if err != nil || v.Reason.Unavailable() {
		j.Reason = slackgate.ReasonGateUnavailable // or no answer at all
		if err == nil {
			j.Reason = v.Reason
		}
		r.progress.Undecided.Add(1)
		return
	}
	j.Path, j.Reason, j.SlackMS, j.PredictedWaitMS = v.Path, v.Reason, v.SlackMS, v.PredictedWaitMS
	asked := v.Path
	if asked == slackgate.Reject {
		asked = slackgate.Free
		if _, ok := v.NeedMS["free"]; !ok {
			asked = slackgate.Paid
		}
	}
	j.NeedMS, j.QueueAgeMS = v.NeedMS[asked.String()], v.QueueAgeMS[asked.String()]
	if v.Path == slackgate.Reject {
		r.progress.Rejected.Add(1)
		return
	}
	r.progress.Admitted.Add(1)
	j.ID = v.JobID
	view := r.await(ctx, v.JobID)
	if view == nil {
		return
	}
	j.AnswerMS = millisSince(due)
	j.ended(view)
	r.progress.Ended.Add(1)
	if view.Outcome == broker.OutcomeUsable {
		r.progress.Usable.Add(1)
	}
}

// ended takes over what became of an admitted job.
func (j *Job) ended(v *broker.View) {
	j.Path, j.Outcome, j.Cause, j.Backend, j.Attempts = v.Path, v.Outcome, v.Cause, v.Backend, v.Attempts
	j.WaitMS, j.ElapsedMS = v.QueueWaitMS, v.ElapsedMS
	j.OverMS = v.ElapsedMS - (v.DeadlineAtMS - v.AcceptedMS)
	if v.FirstByteMS != nil {
		j.FirstByteMS = *v.FirstByteMS
	}
}

// await is an admitted job's end; nil if it was not to be had.
func (r *player) await(ctx context.Context, id string) *broker.View {
	limit := time.Now().Add(time.Duration(r.plan.Class.DeadlineMS+afterwardsMS) * time.Millisecond)
	for time.Now().Before(limit) {
		v, err := r.api.Get(ctx, id, 20*time.Second)
		if err == nil && v.State == broker.StateDone {
			return v
		}
		if err != nil && background.Sleep(ctx, askAgain) != nil {
			return nil
		}
	}
	return nil
}

// collect reads ledgers, backends and checks once all jobs have ended.
func (r *player) collect(ctx context.Context, fromMS int64) error {
	for i := range r.run.Jobs {
		if id := r.run.Jobs[i].ID; id != "" {
			r.byID[id] = i
		}
	}
	if err := r.spend(ctx, fromMS); err != nil {
		return err
	}
	if err := r.misses(ctx, fromMS); err != nil {
		return err
	}
	if err := r.calls(ctx); err != nil {
		return err
	}
	r.leftBehind(ctx)
	report, err := r.api.CheckLedgers(ctx)
	if err != nil {
		return fmt.Errorf("the ledgers could not be checked: %w", err)
	}
	for _, i := range report.Items {
		c := Check{OK: i.OK, Detail: i.Detail}
		if len(i.Problems) > 0 {
			c.Detail += ": " + i.Problems[0]
		}
		r.run.Checks = append(r.run.Checks, c)
	}
	slices.SortStableFunc(r.run.Done, func(a, b Done) int { return int(a.AtMS - b.AtMS) })
	return nil
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

func (r *player) spend(ctx context.Context, fromMS int64) error {
	sums := map[slackgate.Path]*SpendSum{}
	for _, path := range slackgate.Paths {
		sums[path] = &SpendSum{Path: path, CostMicro: map[string]int64{}}
	}
	err := rowsOf(ctx, r.api, ledger.Spend, fromMS, func(row *broker.SpendRow) {
		s := sums[row.Path]
		if _, ours := r.byID[row.JobID]; !ours || s == nil {
			return
		}
		s.Attempts++
		s.InputTokens += row.InputTokens
		s.OutputTokens += row.OutputTokens
		if row.Known == broker.KnownUnknown {
			s.Unknown++
		}
		if row.CostMicro != 0 {
			s.CostMicro[row.Currency] += row.CostMicro
		}
	})
	for _, path := range slackgate.Paths {
		r.run.Spend = append(r.run.Spend, *sums[path])
	}
	return err
}

func (r *player) misses(ctx context.Context, fromMS int64) error {
	type key struct {
		path  slackgate.Path
		cause broker.Cause
	}
	sums := map[key]int64{}
	err := rowsOf(ctx, r.api, ledger.Misses, fromMS, func(row *broker.MissRow) {
		if _, ours := r.byID[row.JobID]; ours {
			sums[key{row.Path, row.Cause}]++
		}
	})
	for _, path := range slackgate.Paths {
		for _, cause := range broker.Causes {
			if n := sums[key{path, cause}]; n > 0 {
				r.run.Misses = append(r.run.Misses, MissSum{path, cause, n})
			}
		}
	}
	return err
}

// calls reads what the lab backends saw of this run.
func (r *player) calls(ctx context.Context) error {
	base := r.begin.UnixMilli()
	for name, l := range r.target.Labs() {
		attempts, err := l.Attempts(ctx, r.seqs[name])
		if err != nil {
			return fmt.Errorf("lab %s: %w", name, err)
		}
		if r.run.Calls == nil {
			r.run.Calls = []Call{}
		}
		for _, a := range attempts {
			c := Call{
				Backend: name, Job: -1, AtMS: a.ReceivedAtMS - base, FirstMS: int64(a.FirstByteMS),
				ElapsedMS: int64(a.ElapsedMS), Ended: string(a.Ended), Fault: a.Fault,
			}
			if cut := strings.LastIndexByte(a.RequestID, '-'); cut > 0 { // the job's id and the attempt's number
				if i, ok := r.byID[a.RequestID[:cut]]; ok {
					c.Job = i
				}
			}
			if c.Job >= 0 {
				r.run.Calls = append(r.run.Calls, c)
			}
		}
	}
	slices.SortFunc(r.run.Calls, func(a, b Call) int { return int(a.AtMS - b.AtMS) })
	return nil
}

// leftBehind checks that the labs are healthy and idle and that nothing waits.
func (r *player) leftBehind(ctx context.Context) {
	check := func(ok bool, format string, args ...any) {
		r.run.Checks = append(r.run.Checks, Check{ok, fmt.Sprintf(format, args...)})
	}
	for _, d := range r.run.Done {
		if d.Error != "" {
			check(false, "%s: %s", d.What, d.Error)
		}
	}
	healthy, idle := true, true
	labs := r.target.Labs()
	for _, l := range labs {
		f, err := l.Fault(ctx)
		healthy = healthy && err == nil && f.Name == ""
		idle = idle && r.idle(ctx, l)
	}
	if len(labs) > 0 {
		check(healthy, "the lab is back to healthy: %d backends", len(labs))
		check(idle, "no backend still works for a job")
	}
	inFlight := 0
	pools, err := r.api.Pools(ctx)
	if err == nil && r.target.Name() == embeddedName { // elsewhere others have jobs too
		for _, v := range pools.Pools {
			inFlight += v.Waiting + v.Running
		}
	}
	ended := 0
	for i := range r.run.Jobs {
		if j := &r.run.Jobs[i]; j.Admitted() && j.Outcome == "" {
			ended++
		}
	}
	check(err == nil && inFlight == 0 && ended == 0, "every admitted job has ended: %d have not, %d are in flight", ended, inFlight)
	flags, err := r.api.Flags(ctx)
	set := slices.ContainsFunc(flags, func(f httpapi.FlagView) bool { return f.By == "leeway drill" && f.Source == "flag" })
	check(err == nil && !set, "no flag of the drill is still set")
}

// embeddedName is what an [Embedded] calls itself.
const embeddedName = "embedded"

// idle waits a little for a backend that a client has just left.
func (r *player) idle(ctx context.Context, l Control) bool {
	const tries = 25
	for range tries {
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
	return false
}

// direct sends the same arrivals straight to a backend, as callers without an
// admission would, each of whom waits for the answer however late it is.
func (r *player) direct(ctx context.Context, schedule []Arrival) error {
	if r.plan.Contrast == "" {
		return nil
	}
	url, hc, ok := r.target.Backend(r.plan.Contrast)
	if !ok {
		return nil // said in LeftOut
	}
	d := &Direct{Backend: r.plan.Contrast, Callers: len(schedule)}
	took := newSeries()
	var mu sync.Mutex
	var wg sync.WaitGroup
	begin := time.Now()
	for _, a := range schedule {
		due := begin.Add(time.Duration(a.AtMS) * time.Millisecond)
		if d := time.Until(due); d > 0 {
			if err := background.Sleep(ctx, d); err != nil {
				return err
			}
		}
		wg.Go(func() {
			whole := ask(ctx, hc, url, a.OutputTokens)
			ms := millisSince(due)
			mu.Lock()
			defer mu.Unlock()
			if !whole {
				return
			}
			d.OK++
			d.LastMS = max(d.LastMS, int64(ms))
			took.add(ms)
			if ms <= float64(r.plan.Class.DeadlineMS) {
				d.InTime++
			}
		})
	}
	wg.Wait()
	d.P50MS = took.h.ValueAtQuantile(50)
	r.run.Direct = d
	return ctx.Err()
}

// ask makes one call of a backend and reports whether HTTP 200 and a whole body
// came back.
func ask(ctx context.Context, hc *http.Client, url string, tokens int) bool {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	body, err := json.Marshal(struct {
		Model     string    `json:"model"`
		MaxTokens int       `json:"max_tokens,omitempty"`
		Messages  []message `json:"messages"`
	}{lab.DefaultModel, tokens, []message{{"user", text}}})
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/chat/completions", strings.NewReader(string(body)))
	if err != nil {
		return false
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := hc.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, client.MaxResponseBytes))
	return err == nil && resp.StatusCode == http.StatusOK
}
