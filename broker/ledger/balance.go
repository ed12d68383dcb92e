package ledger

import (
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"strings"

	"leeway/broker"
	"leeway/slackgate"
)

// Books is what the store says of its books at one instant.
type Books struct {
	NowMS  int64
	Totals broker.Totals
	// Waiting and Running are the admitted jobs without an outcome.
	Waiting, Running [slackgate.NumPaths]int64
	Spend, Misses    Extent
	// KeptRows is how many rows of a ledger stay where no archive takes them,
	// Archived is set where one does. Without either nothing may be missing.
	KeptRows int64
	Archived bool
	// Open is the number of spend rows that are not settled, Overdue that of
	// those whose attempt must have been over for [GraceMS].
	Open, Overdue int64
	// Minutes are the sums of the minutes that the last rows are in.
	Minutes []MinuteSums
	// Budgets is nil where nobody asked for them.
	Budgets *BudgetBooks
}

// MinuteSums are a minute's numbers by field name.
type MinuteSums struct {
	Minute int64
	Sums   map[string]string
	// Producers have sums of their own; the others share one name.
	Producers map[string]bool
}

// Extent is what of a ledger is in the store.
type Extent struct {
	Rows        int64
	First, Last string
}

// Extent is that of a ledger.
func (b *Books) Extent(k Kind) Extent {
	if k == Spend {
		return b.Spend
	}
	return b.Misses
}

// Booked is how many rows of a ledger were ever booked.
func (b *Books) Booked(k Kind) (n int64) {
	if k == Spend {
		return b.Totals["attempts:paid"] + b.Totals["attempts:free"] + b.Totals["set_aside:spend"]
	}
	for _, p := range []slackgate.Path{slackgate.Reject, slackgate.Paid, slackgate.Free} {
		n += b.Totals["miss:"+p.String()]
	}
	return n
}

// whole reports whether every row ever booked must still be in the store.
func (b *Books) whole(k Kind) bool {
	booked := b.Booked(k)
	return b.Extent(k).Rows >= booked || (!b.Archived && booked <= b.KeptRows)
}

// Balanced reports whether what can be held against each other without reading
// a row agrees: outcomes, misses and the number of rows. A [Balance] says more.
func (b *Books) Balanced() bool {
	q := NewBalance()
	q.Books(b)
	q.outcomes()
	for _, k := range []Kind{Spend, Misses} {
		rows, booked := b.Extent(k).Rows, b.Booked(k)
		if rows > booked || (rows < booked && b.whole(k)) {
			return false
		}
	}
	return q.items[ItemOutcomes].Found+q.items[ItemMisses].Found == 0
}

// Record is what a balance wants to know of a job's record.
type Record struct {
	ID       string
	State    broker.State
	Outcome  broker.Outcome
	Attempts int
	// AcceptedAtMS and EndedMS are 0 when the record does not say.
	AcceptedAtMS, EndedMS int64
	// Unlisted is set for an unfinished job that is not among its producer's.
	Unlisted bool
}

// Item is one thing that must hold.
type Item struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Detail says what was compared, with its numbers.
	Detail string `json:"detail"`
	// Problems are what does not hold, at most [MostProblems] of them.
	Problems []string `json:"problems,omitempty"`
	// Found is how many there are in all.
	Found int `json:"found,omitempty"`
}

// MostProblems bounds the problems that an item names.
const MostProblems = 20

// Report is the result of a balance.
type Report struct {
	AtMS int64 `json:"at_ms"`
	// Balanced is set when all items are ok.
	Balanced bool          `json:"balanced"`
	Items    []*Item       `json:"items"`
	Totals   broker.Totals `json:"totals"`
}

// The names of the items, in the order of a report.
const (
	ItemOutcomes    = "outcomes"
	ItemAttempts    = "attempts"
	ItemMisses      = "misses"
	ItemSpendTotals = "spend_totals"
	ItemMissTotals  = "miss_totals"
	ItemSpendSums   = "spend_rollups"
	ItemMissSums    = "miss_rollups"
	ItemOpen        = "open_rows"
)

// GraceMS is how long past its due instant an attempt may stay unsettled: its
// settlement may be on its way.
const GraceMS = 10_000

// Balance holds the books against each other. What is fed to it must have been
// read in this order, so that a busy system looks no worse than it is: records,
// producers' unfinished jobs, open rows, [Books], then the rows of each ledger up to the last that Books
// names, in their order, and then which rows are still open.
type Balance struct {
	seed    maphash.Seed
	records []Record
	open    []broker.SpendRow
	books   *Books
	// stillOpen are the attempts of those that were open to the last.
	stillOpen map[uint64]bool
	// skippedRecords is set when there are more than were looked at.
	skippedRecords bool

	attempts map[uint64]struct{} // job and number, seen
	perJob   map[uint64]int32    // settled or open rows of a job
	missed   map[uint64]int32    // miss rows of a job
	totals   broker.Totals       // as the rows make them
	rows     map[Kind]int64
	minutes  map[Kind]int64 // compared
	listed   listedSums
	items    map[string]*Item
	// spentToday is what today's rows cost, by budget field.
	spentToday map[string]int64
}

// NewBalance begins a balance.
func NewBalance() *Balance {
	b := &Balance{
		seed: maphash.MakeSeed(), attempts: map[uint64]struct{}{}, perJob: map[uint64]int32{}, missed: map[uint64]int32{},
		totals: broker.Totals{}, rows: map[Kind]int64{}, minutes: map[Kind]int64{}, items: map[string]*Item{},
		spentToday: map[string]int64{},
	}
	for _, n := range itemNames {
		b.items[n] = &Item{Name: n}
	}
	return b
}

var itemNames = []string{
	ItemOutcomes, ItemUnfinished, ItemAttempts, ItemMisses, ItemSpendTotals, ItemMissTotals, ItemSpendSums, ItemMissSums, ItemOpen, ItemBudgets,
}

func (b *Balance) problemf(item, format string, args ...any) {
	i := b.items[item]
	i.Found++
	if len(i.Problems) < MostProblems {
		i.Problems = append(i.Problems, fmt.Sprintf(format, args...))
	}
}

func (b *Balance) hash(parts ...string) uint64 {
	var h maphash.Hash
	h.SetSeed(b.seed)
	for _, p := range parts {
		_, _ = h.WriteString(p)
		_ = h.WriteByte(0)
	}
	return h.Sum64()
}

// Records are the jobs on record; skipped is set when there are more.
func (b *Balance) Records(r []Record, skipped bool) { b.records, b.skippedRecords = r, skipped }

// Open are the spend rows that are not settled.
func (b *Balance) Open(rows []broker.SpendRow) { b.open = rows }

// StillOpen are those that are open once all rows were taken in. The others were
// settled meanwhile, and may stand among the rows.
func (b *Balance) StillOpen(rows []broker.SpendRow) {
	b.stillOpen = make(map[uint64]bool, len(rows))
	for i := range rows {
		b.stillOpen[b.attemptOf(&rows[i])] = true
	}
}

// Unreadable takes in rows that cannot be read, under the item that is to name
// them: of a ledger that of its totals. They are there, and nothing else is known
// of them.
func (b *Balance) Unreadable(item string, rows ...broker.Unreadable) {
	for _, r := range rows {
		switch item {
		case ItemSpendTotals:
			b.rows[Spend]++
		case ItemMissTotals:
			b.rows[Misses]++
		}
		b.problemf(item, "row %s cannot be read: %s", r.ID, r.Why)
	}
}

// TotalsItem is the item that holds a ledger's rows against its totals.
func TotalsItem(k Kind) string {
	if k == Spend {
		return ItemSpendTotals
	}
	return ItemMissTotals
}

// Books are what the rows are held against.
func (b *Balance) Books(books *Books) { b.books = books }

// Spend takes in a settled row.
func (b *Balance) Spend(r *broker.SpendRow) {
	b.rows[Spend]++
	b.spentBy(r)
	b.attempt(r)
	p := r.Path.String()
	b.totals["attempts:"+p]++
	b.totals["tokens:"+p+":input"] += r.InputTokens
	b.totals["tokens:"+p+":output"] += r.OutputTokens
	b.totals["spend_tokens:"+p] += r.SpentTokens()
	b.totals["cost_micro:"+p+":"+r.Currency] += r.CostMicro
	b.totals["known:"+p+":"+string(r.Known)]++
	if r.CostDiffers() {
		b.totals["cost_difference:"+r.Backend]++
	}
}

func (b *Balance) attemptOf(r *broker.SpendRow) uint64 {
	return b.hash(r.JobID, strconv.Itoa(r.Attempt))
}

func (b *Balance) attempt(r *broker.SpendRow) {
	k := b.attemptOf(r)
	if _, twice := b.attempts[k]; twice {
		b.problemf(ItemAttempts, "attempt %d of job %s has two spend rows", r.Attempt, r.JobID)
		return
	}
	b.attempts[k] = struct{}{}
	b.perJob[b.hash(r.JobID)]++
}

// Miss takes in a miss row.
func (b *Balance) Miss(r *broker.MissRow) {
	b.rows[Misses]++
	k := b.hash(r.JobID)
	if b.missed[k]++; b.missed[k] == 2 {
		b.problemf(ItemMisses, "job %s has two miss rows", r.JobID)
	}
	p := r.Path.String()
	b.totals["miss:"+p]++
	b.totals["miss_cause:"+p+":"+string(r.Cause)]++
}

// FirstMinute is the first minute whose rows are all there, for which
// [Balance.Compare] may be asked.
func (b *Balance) FirstMinute(k Kind) int64 {
	e := b.books.Extent(k)
	m := MinuteOf(IDTimeMS(e.First))
	if !b.books.whole(k) {
		m++
	}
	return m
}

// Compare holds the sums of a minute's rows, each under the producer that it is
// summed under, against the sums that the store keeps.
func (b *Balance) Compare(k Kind, m *MinuteSums, rows Sums) {
	b.minutes[k]++
	item := ItemSpendSums
	if k == Misses {
		item = ItemMissSums
	}
	left := Sums{}
	maps.Copy(left, rows)
	for name, v := range m.Sums {
		f, ok := ParseField(name)
		if ok && f.Kind != k {
			continue
		}
		n, err := strconv.ParseInt(v, 10, 64)
		if !ok || err != nil {
			b.problemf(item, "minute %d has a sum that cannot be read: %q", MinuteMS(m.Minute), name)
			continue
		}
		if left[name] != n {
			b.problemf(item, "minute %d: %s is %d, its rows sum to %d", MinuteMS(m.Minute), name, n, left[name])
		}
		delete(left, name)
	}
	for name, n := range left {
		b.problemf(item, "minute %d: its rows sum to %s = %d, which has no sum", MinuteMS(m.Minute), name, n)
	}
}

// SummedUnder is the name that a producer's rows of a minute are summed under.
func (m *MinuteSums) SummedUnder(producer string) string {
	if m.Producers[producer] {
		return producer
	}
	return OtherProducer
}

// Report closes the balance.
func (b *Balance) Report() *Report {
	b.outcomes()
	b.unfinished()
	b.attemptsAndMisses()
	b.sums(Spend, ItemSpendTotals, "attempts", "tokens", "spend_tokens", "cost_micro", "known", "cost_difference")
	b.sums(Misses, ItemMissTotals, "miss", "miss_cause")
	b.rollups(Spend, ItemSpendSums)
	b.rollups(Misses, ItemMissSums)
	b.openRows()
	b.budgets()
	r := &Report{AtMS: b.books.NowMS, Balanced: true, Totals: b.books.Totals}
	for _, n := range itemNames {
		i := b.items[n]
		i.OK = i.Found == 0
		r.Balanced = r.Balanced && i.OK
		r.Items = append(r.Items, i)
	}
	return r
}

// outcomes: on each path, what came in is what ended, moved on, waits or runs;
// and what ended as a miss is what the miss ledger counts.
func (b *Balance) outcomes() {
	t := b.books.Totals
	var admitted, ended, waiting, running int64
	for _, path := range slackgate.Paths {
		p := path.String()
		in, out, missed := t["admitted:"+p], int64(0), int64(0)
		admitted += in
		for _, other := range slackgate.Paths {
			in += t["moved:"+other.String()+":"+p]
			out += t["moved:"+p+":"+other.String()]
		}
		for _, o := range broker.Outcomes {
			n := t["outcome:"+p+":"+string(o)]
			out += n
			ended += n
			if o.Miss() {
				missed += n
			}
		}
		w, r := b.books.Waiting[path], b.books.Running[path]
		waiting, running = waiting+w, running+r
		if in != out+w+r {
			b.problemf(ItemOutcomes, "%s: %d jobs came in; %d ended or moved on, %d wait, %d run", p, in, out, w, r)
		}
		if n := t["miss:"+p]; n != missed {
			b.problemf(ItemMisses, "%s: %d outcomes are misses, %d misses are booked", p, missed, n)
		}
	}
	b.items[ItemOutcomes].Detail = fmt.Sprintf("every admitted job has one outcome, waits or runs: %d admitted, %d ended, %d waiting, %d running",
		admitted, ended, waiting, running)
}

func (b *Balance) attemptsAndMisses() {
	for i := range b.open {
		r := &b.open[i]
		k := b.attemptOf(r)
		if _, settled := b.attempts[k]; !settled || b.stillOpen[k] {
			b.attempt(r)
		}
	}
	spendFrom, missFrom := b.since(Spend), b.since(Misses)
	attempts, misses := 0, 0
	for i := range b.records {
		r := &b.records[i]
		k := b.hash(r.ID)
		if r.AcceptedAtMS >= spendFrom {
			attempts += r.Attempts
			if n := int(b.perJob[k]); n < r.Attempts {
				b.problemf(ItemAttempts, "job %s made %d attempts and has %d spend rows", r.ID, r.Attempts, n)
			}
		}
		if r.State != broker.StateDone || r.EndedMS < missFrom {
			continue
		}
		want := int32(0)
		if r.Outcome.Miss() {
			want, misses = 1, misses+1
		}
		if n := b.missed[k]; n != want && n < 2 {
			b.problemf(ItemMisses, "job %s ended as %s and has %d miss rows", r.ID, r.Outcome, n)
		}
	}
	some := ""
	if b.skippedRecords {
		some = "; there are more records, which were not looked at"
	}
	b.items[ItemAttempts].Detail = fmt.Sprintf("every attempt has one spend row: %d attempts of %d jobs on record, %d rows settled, %d open%s",
		attempts, len(b.records), b.rows[Spend], len(b.open), some)
	b.items[ItemMisses].Detail = fmt.Sprintf("every miss has one row: %d misses among the jobs on record, %d rows%s", misses, b.rows[Misses], some)
}

// since is the instant from which on no row of a ledger is missing from the
// store.
func (b *Balance) since(k Kind) int64 {
	if b.books.whole(k) {
		return -1 << 62
	}
	return IDTimeMS(b.books.Extent(k).First) + 1
}

// sums holds the totals, from which the metrics are read, against the rows.
func (b *Balance) sums(k Kind, item string, names ...string) {
	n, booked := b.rows[k], b.books.Booked(k)
	i := b.items[item]
	if ext := b.books.Extent(k).Rows; n != ext {
		b.problemf(item, "%d rows were read of %d", n, ext)
	}
	if n > booked {
		b.problemf(item, "%d rows are there, %d were booked", n, booked)
	}
	if n < booked && b.books.whole(k) {
		b.problemf(item, "%d rows are there, %d were booked, and nothing may have been dropped", n, booked)
	}
	if !b.books.whole(k) {
		i.Detail = fmt.Sprintf("the totals cover %d rows that are no longer here, so that only their roll-ups can be held against the %d that are", booked-n, n)
		return
	}
	for name, v := range b.books.Totals {
		family, _, _ := strings.Cut(name, ":")
		if slices.Contains(names, family) && b.totals[name] != v {
			b.problemf(item, "%s is %d, the rows sum to %d", name, v, b.totals[name])
		}
	}
	for name, v := range b.totals {
		family, _, _ := strings.Cut(name, ":")
		if _, ok := b.books.Totals[name]; !ok && v != 0 && slices.Contains(names, family) {
			b.problemf(item, "the rows sum to %s = %d, which has no total", name, v)
		}
	}
	i.Detail = fmt.Sprintf("the totals, which the metrics show, are the sums of the %s ledger's %d rows", k, n)
}

func (b *Balance) rollups(k Kind, item string) {
	b.items[item].Detail = fmt.Sprintf("the roll-ups are the sums of the %s ledger's rows: %d minutes", k, b.minutes[k])
}

func (b *Balance) openRows() {
	oldest := int64(0)
	for i := range b.open {
		r := &b.open[i]
		late := b.books.NowMS - r.DueAtMS
		if r.DueAtMS > 0 && late > GraceMS {
			b.problemf(ItemOpen, "attempt %d of job %s on %s is open %d ms after it was due", r.Attempt, r.JobID, r.Backend, late)
		}
		oldest = max(oldest, b.books.NowMS-r.OpenedAtMS)
	}
	b.items[ItemOpen].Detail = fmt.Sprintf("no spend row is open past its deadline: %d open, the oldest for %d ms", len(b.open), oldest)
}
