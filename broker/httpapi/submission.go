package httpapi

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"leeway/broker"
	"leeway/broker/config"
	"leeway/broker/wire"
)

// Bounds of a submission beside the configured ones.
const (
	MaxMetadata      = 16
	MaxMetadataBytes = 256
)

// submission is the body of POST /v1/jobs and a line of a batch. The deadline
// stays raw, so that 1e400, 0.3 and "soon" get an error of their own and none
// is rounded into an admission.
type submission struct {
	Class           string            `json:"class"`
	Text            *string           `json:"text"`
	DeadlineMS      jsontext.Value    `json:"deadline_ms"`
	DeadlineAt      jsontext.Value    `json:"deadline_at"`
	MaxOutputTokens *int64            `json:"max_output_tokens"`
	Producer        string            `json:"producer"`
	Metadata        map[string]string `json:"metadata"`
	// CustomID names a line of a batch; it comes back with the verdict, and
	// under the batch's idempotency key it makes the line a job of its own.
	CustomID string `json:"custom_id"`
}

// MaxKeyBytes bounds an idempotency key.
const MaxKeyBytes = 255

// idempotencyKey reads the header; empty when it is not there.
func idempotencyKey(h http.Header) (string, error) {
	values := h.Values(wire.HeaderIdempotencyKey)
	if len(values) == 0 {
		return "", nil
	}
	key := values[0]
	if len(values) > 1 || key == "" || len(key) > MaxKeyBytes {
		return "", broker.Fieldf(wire.HeaderIdempotencyKey, "must be given once, with 1..%d characters", MaxKeyBytes)
	}
	for _, c := range []byte(key) {
		if c <= ' ' || c > '~' {
			return "", broker.Fieldf(wire.HeaderIdempotencyKey, "must be printable ASCII without spaces")
		}
	}
	return key, nil
}

// keyed names a submission by a key and its body.
func keyed(key string, body []byte) broker.IdempotencyKey {
	if key == "" {
		return broker.IdempotencyKey{}
	}
	sum := sha256.Sum256(body)
	return broker.IdempotencyKey{Value: key, BodyHash: hex.EncodeToString(sum[:16])}
}

// job turns a submission into a job, or says which field is wrong. receivedAtMS
// is receivedAt on the store's clock, for deadlines given as an instant.
func (s *submission) job(cfg *config.Config, receivedAtMS int64, receivedAt time.Time) (*broker.Submission, error) {
	name := s.Class
	if name == "" {
		name = cfg.DefaultClass
	}
	class, ok := cfg.Classes[name]
	if !ok {
		return nil, broker.Fieldf("class", "no such class")
	}
	if !cfg.MayUse(s.Producer, name) {
		return nil, fieldProblem(http.StatusForbidden, wire.ReasonForbidden, "class", "class: the producer may not use it")
	}
	if s.Text == nil {
		return nil, broker.Fieldf("text", "is missing")
	}
	if strings.TrimSpace(*s.Text) == "" {
		return nil, broker.Fieldf("text", "is empty")
	}
	if limit := cfg.TextLimit(s.Producer); int64(len(*s.Text)) > limit {
		return nil, broker.Fieldf("text", "is %d bytes; the limit is %d", len(*s.Text), limit)
	}
	if len(s.Producer) > wire.MaxProducerBytes {
		return nil, broker.Fieldf("producer", "is longer than %d bytes", wire.MaxProducerBytes)
	}
	if len(s.CustomID) > wire.MaxProducerBytes {
		return nil, broker.Fieldf("custom_id", "is longer than %d bytes", wire.MaxProducerBytes)
	}
	if err := checkMetadata(s.Metadata); err != nil {
		return nil, err
	}
	deadline, err := s.deadline(&class, receivedAtMS)
	if err != nil {
		return nil, err
	}
	tokens := int64(class.MaxOutputTokens)
	if s.MaxOutputTokens != nil {
		tokens = *s.MaxOutputTokens
		if tokens < 1 || tokens > int64(class.MaxOutputTokens) {
			return nil, broker.Fieldf("max_output_tokens", "%d is outside 1..%d", tokens, class.MaxOutputTokens)
		}
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	prefer, _ := class.Prefer.Paths()
	return &broker.Submission{
		Spec: broker.Spec{
			ID: id.String(), Class: name, Producer: s.Producer, Text: *s.Text,
			Prefer: prefer, FirstByteOnly: class.Success == config.SuccessFirstByte, Rescue: class.Rescue,
			MaxOutputTokens: int(tokens), Metadata: s.Metadata, Webhook: cfg.Told(s.Producer),
		},
		DeadlineInMS: deadline, ReserveMS: *class.ReserveMS, ReceivedAt: receivedAt,
	}, nil
}

func checkMetadata(m map[string]string) error {
	if len(m) > MaxMetadata {
		return broker.Fieldf("metadata", "has more than %d entries", MaxMetadata)
	}
	for k, v := range m {
		if len(k) > MaxMetadataBytes || len(v) > MaxMetadataBytes || !utf8.ValidString(k) {
			return broker.Fieldf("metadata", "has a key or value longer than %d bytes", MaxMetadataBytes)
		}
	}
	return nil
}

// absent reports whether a raw field was left out or null.
func absent(v jsontext.Value) bool { return len(v) == 0 || string(v) == "null" }

// deadline is the time the job has, in milliseconds from receipt.
func (s *submission) deadline(class *config.Class, receivedAtMS int64) (int64, error) {
	switch {
	case !absent(s.DeadlineMS) && !absent(s.DeadlineAt):
		return 0, broker.Fieldf("deadline_ms", "give deadline_ms or deadline_at, not both")
	case !absent(s.DeadlineMS):
		return deadlineMS(s.DeadlineMS, class.MaxDeadlineMS)
	case !absent(s.DeadlineAt):
		return deadlineAt(s.DeadlineAt, class.MaxDeadlineMS, receivedAtMS)
	}
	return class.DeadlineMS, nil
}

func deadlineMS(raw jsontext.Value, longest int64) (int64, error) {
	if raw.Kind() != '0' {
		return 0, broker.Fieldf("deadline_ms", "must be a number: milliseconds from now, for example 15000")
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return 0, broker.Fieldf("deadline_ms", "must be a whole number of milliseconds in 1..%d, without exponent or fraction", longest)
	}
	if n <= 0 || n > longest {
		return 0, broker.Fieldf("deadline_ms", "%d is outside 1..%d milliseconds", n, longest)
	}
	return n, nil
}

func deadlineAt(raw jsontext.Value, longest, receivedAtMS int64) (int64, error) {
	var text string
	if raw.Kind() != '"' || json.Unmarshal(raw, &text) != nil {
		return 0, broker.Fieldf("deadline_at", "must be a string: an RFC 3339 time with its zone")
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return 0, broker.Fieldf("deadline_at", "is not an RFC 3339 time with its zone, for example 2030-01-31T02:14:00Z")
	}
	left := at.UnixMilli() - receivedAtMS //nolint:forbidigo // the instant that the producer named, not a clock
	if left <= 0 {
		return 0, broker.Fieldf("deadline_at", "is %d ms in the past by the broker's clock", -left)
	}
	if left > longest {
		return 0, broker.Fieldf("deadline_at", "is %d ms away; the class allows %d", left, longest)
	}
	return left, nil
}
