package slackgate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// The article's lab defaults, in milliseconds.
const (
	ArticleDeadlineMS         = 15_000
	ArticleReserveMS          = 2_000
	ArticlePaidP95FirstByteMS = 1_200
	ArticleFreeP95FirstByteMS = 4_000
	ArticleFreeQueueAgeCutMS  = 3_000
)

// MaxArticleBytes is the longest snapshot document [ParseArticle] reads.
const MaxArticleBytes = 64 << 10

// ErrArticleTooLong is returned for a document over [MaxArticleBytes].
var ErrArticleTooLong = errors.New("slackgate: snapshot document is longer than 64 KiB")

// FieldError reports a field of a snapshot document that is unknown, missing,
// doubled or not a whole number in range.
type FieldError struct {
	Field   string
	Problem string
}

func (e *FieldError) Error() string {
	return "slackgate: snapshot field " + quote(e.Field) + ": " + e.Problem
}

// Article is the snapshot of the article "Reject paid-to-free failover before
// first-byte wait beats slack", with the constants its code keeps beside it.
type Article struct {
	PaidInFlight   int64
	PaidLimit      int64
	FreeQueueAgeMS int64
	FreeInFlight   int64
	EnqueuedAtMS   int64

	// NowMS is the instant of the decision; 0 where the document has none, and
	// the caller puts in its clock.
	NowMS int64
	// DeadlineMS counts from EnqueuedAtMS. Defaults to 15000.
	DeadlineMS int64
	// ReserveMS defaults to 2000.
	ReserveMS int64
	// PaidP95FirstByteMS defaults to 1200.
	PaidP95FirstByteMS int64
	// FreeP95FirstByteMS defaults to 4000.
	FreeP95FirstByteMS int64
	// FreeQueueAgeCutMS defaults to 3000.
	FreeQueueAgeCutMS int64
}

// articleField ties a name in the document to its place and range.
type articleField struct {
	name     string
	at       *int64
	min, max int64
	required bool
}

// maxArticleNumber keeps every sum of two fields far from overflow, and is
// beyond any instant in milliseconds that a clock will show.
const maxArticleNumber = 1 << 53

func (a *Article) fields() []articleField {
	const count = 1 << 31
	return []articleField{
		{"paid_inflight", &a.PaidInFlight, 0, count, true},
		{"paid_limit", &a.PaidLimit, 0, count, true},
		{"free_queue_age_ms", &a.FreeQueueAgeMS, 0, maxArticleNumber, true},
		{"free_inflight", &a.FreeInFlight, 0, count, true},
		{"enqueued_at_ms", &a.EnqueuedAtMS, 0, maxArticleNumber, true},
		{"now_ms", &a.NowMS, 1, maxArticleNumber, false},
		{"deadline_ms", &a.DeadlineMS, 1, maxArticleNumber, false},
		{"reserve_ms", &a.ReserveMS, 0, maxArticleNumber, false},
		{"paid_p95_first_byte_ms", &a.PaidP95FirstByteMS, 1, maxArticleNumber, false},
		{"free_p95_first_byte_ms", &a.FreeP95FirstByteMS, 1, maxArticleNumber, false},
		{"free_queue_age_cut_ms", &a.FreeQueueAgeCutMS, 0, maxArticleNumber, false},
	}
}

// ParseArticle reads a snapshot document: one JSON object of whole numbers. It
// is strict, because a gate that guesses at its inputs fails open: unknown,
// doubled, missing, fractional and out-of-range fields are a [FieldError]
// naming the field, and names must match in case too.
func ParseArticle(doc []byte) (Article, error) {
	a := Article{
		DeadlineMS:         ArticleDeadlineMS,
		ReserveMS:          ArticleReserveMS,
		PaidP95FirstByteMS: ArticlePaidP95FirstByteMS,
		FreeP95FirstByteMS: ArticleFreeP95FirstByteMS,
		FreeQueueAgeCutMS:  ArticleFreeQueueAgeCutMS,
	}
	if len(doc) > MaxArticleBytes {
		return Article{}, ErrArticleTooLong
	}
	fields := a.fields()
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return Article{}, notAnObject(err)
	}
	var seen uint
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return Article{}, notAnObject(err)
		}
		name, _ := t.(string) // between { and } the decoder yields only names here
		i := 0
		for i < len(fields) && fields[i].name != name {
			i++
		}
		if i == len(fields) {
			return Article{}, &FieldError{name, "unknown"}
		}
		if seen&(1<<i) != 0 {
			return Article{}, &FieldError{name, "given twice"}
		}
		seen |= 1 << i
		t, err = dec.Token()
		if err != nil {
			return Article{}, notAnObject(err)
		}
		number, ok := t.(json.Number)
		if !ok {
			return Article{}, &FieldError{name, "not a number"}
		}
		v, err := strconv.ParseInt(number.String(), 10, 64)
		if err != nil {
			return Article{}, &FieldError{name, "not a whole number in range"}
		}
		if v < fields[i].min || v > fields[i].max {
			return Article{}, &FieldError{name, fmt.Sprintf("must be from %d to %d", fields[i].min, fields[i].max)}
		}
		*fields[i].at = v
	}
	if _, err := dec.Token(); err != nil { // the closing brace
		return Article{}, notAnObject(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Article{}, errors.New("slackgate: more than one value in the snapshot document")
	}
	for i := range fields {
		if fields[i].required && seen&(1<<i) == 0 {
			return Article{}, &FieldError{fields[i].name, "missing"}
		}
	}
	return a, nil
}

func notAnObject(err error) error {
	if err == nil {
		return errors.New("slackgate: the snapshot document is not a JSON object")
	}
	return fmt.Errorf("slackgate: the snapshot document is not a JSON object: %w", err)
}

// Decide applies the seed rule to the article's snapshot, at a.NowMS.
func (a *Article) Decide() Result {
	var s Snapshot
	s.Pools[Paid] = PoolState{
		Limit:    int(a.PaidLimit),
		Capacity: int(a.PaidLimit), Running: int(a.PaidInFlight),
		FirstByteP95MS: a.PaidP95FirstByteMS,
	}
	s.Pools[Free] = PoolState{
		Limit: 1, Capacity: 1, // the article declares one free worker
		Running:    int(a.FreeInFlight),
		QueueAgeMS: a.FreeQueueAgeMS, ClassQueueAgeMS: a.FreeQueueAgeMS,
		FirstByteP95MS: a.FreeP95FirstByteMS,
	}
	j := Job{
		DeadlineAtMS: a.EnqueuedAtMS + a.DeadlineMS,
		ReserveMS:    a.ReserveMS,
		Prefer:       [2]Path{Paid, Free},
	}
	return Decide(&s, j, Policy{Rule: Seed, FreeQueueAgeCutMS: a.FreeQueueAgeCutMS}, a.NowMS)
}

// FreeNeedMS is what the article prints beside the decision, whatever it was.
func (a *Article) FreeNeedMS() int64 { return a.FreeQueueAgeMS + a.FreeP95FirstByteMS }

// Line is the line the article's helper prints for a result r of a.Decide.
func (a *Article) Line(r *Result) string {
	decision := string(r.Reason)
	return fmt.Sprintf(`{"decision": %q, "slack_ms": %d, "free_need_ms": %d}`, decision, r.SlackMS, a.FreeNeedMS())
}
