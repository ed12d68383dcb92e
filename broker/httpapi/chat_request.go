package httpapi

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/config"
	"leeway/broker/wire"
)

// The OpenAI-compatible face: a chat completion is a job. The model is the
// job's class, the user's messages are its text, and a system message is added
// to the class's prompt. Parameters that only shape the sampling are ignored;
// those that would make another answer than a text are refused.

// MaxInstructionBytes bounds what system messages add to a class's prompt.
const MaxInstructionBytes = 16 << 10

// maxMessages bounds the messages of a chat completion, and the parts of one.
const maxMessages = 1024

// Routes whose errors have OpenAI's shape.
const (
	routeChat   = "/v1/chat/completions"
	routeModels = "/v1/models"
)

type chatRequest struct {
	Model               string        `json:"model"`
	Messages            []chatMessage `json:"messages"`
	Stream              bool          `json:"stream"`
	StreamOptions       streamOptions `json:"stream_options"`
	MaxTokens           *int64        `json:"max_tokens"`
	MaxCompletionTokens *int64        `json:"max_completion_tokens"`

	Metadata map[string]string `json:"metadata"`

	// Relay is Leeway's own: when a stream begins. The class's if left out.
	Relay config.Relay `json:"relay"`

	// What follows is refused unless it asks for one plain text.
	N              *int64           `json:"n"`
	Tools          []jsontext.Value `json:"tools"`
	Functions      []jsontext.Value `json:"functions"`
	Modalities     []string         `json:"modalities"`
	Logprobs       bool             `json:"logprobs"`
	ResponseFormat struct {
		Type string `json:"type"`
	} `json:"response_format"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type chatMessage struct {
	Role    string         `json:"role"`
	Content jsontext.Value `json:"content"`
}

// decodeChat reads a request, leniently: clients send much that is not for us.
func decodeChat(body []byte) (*chatRequest, error) {
	r, err := decode[chatRequest](body)
	if err != nil {
		return nil, err
	}
	switch {
	case r.Model == "":
		return nil, broker.Fieldf("model", "is missing: it is the name of a class, see GET /v1/models")
	case len(r.Messages) == 0 || len(r.Messages) > maxMessages:
		return nil, broker.Fieldf("messages", "must hold 1..%d messages", maxMessages)
	case r.N != nil && *r.N != 1:
		return nil, broker.Fieldf("n", "must be 1: a job has one answer")
	case len(r.Tools) > 0:
		return nil, broker.Fieldf("tools", "are not supported: a job's answer is a text")
	case len(r.Functions) > 0:
		return nil, broker.Fieldf("functions", "are not supported: a job's answer is a text")
	case r.Logprobs:
		return nil, broker.Fieldf("logprobs", "are not supported")
	case r.ResponseFormat.Type != "" && r.ResponseFormat.Type != "text":
		return nil, broker.Fieldf("response_format", "must be of type text")
	case r.Relay != "" && r.Relay != config.RelayLive && r.Relay != config.RelayWhole:
		return nil, broker.Fieldf("relay", "must be live or whole")
	case len(r.Modalities) > 0 && !slices.Equal(r.Modalities, []string{"text"}):
		return nil, broker.Fieldf("modalities", "must be text alone")
	}
	return r, nil
}

// words are the user's text and the instruction in the system messages.
func (r *chatRequest) words() (text, instruction string, err error) {
	var user, system []string
	for i, m := range r.Messages {
		field := "messages." + strconv.Itoa(i)
		content, err := contentText(field+".content", m.Content)
		if err != nil {
			return "", "", err
		}
		switch m.Role {
		case "user":
			user = append(user, content)
		case "system", "developer":
			system = append(system, content)
		case "assistant", "tool", "function":
			return "", "", broker.Fieldf(field+".role", "%s is not supported: a job is one text and one answer, not a conversation", m.Role)
		default:
			return "", "", broker.Fieldf(field+".role", "must be user, system or developer")
		}
	}
	if len(user) == 0 {
		return "", "", broker.Fieldf("messages", "have no user message: it is the job's text")
	}
	instruction = strings.TrimSpace(strings.Join(system, "\n\n"))
	if len(instruction) > MaxInstructionBytes {
		return "", "", broker.Fieldf("messages", "have system messages of more than %d bytes", MaxInstructionBytes)
	}
	return strings.Join(user, "\n\n"), instruction, nil
}

// contentText is a message's content: a string or a list of text parts.
func contentText(field string, raw jsontext.Value) (string, error) {
	switch raw.Kind() {
	case '"':
		var s string
		err := json.Unmarshal(raw, &s)
		return s, err
	case '[':
		var parts []struct {
			Type string `json:"type"`
			Text string `json:"text"`
		}
		if err := json.Unmarshal(raw, &parts); err != nil || len(parts) > maxMessages {
			return "", broker.Fieldf(field, "must be a string or a list of at most %d text parts", maxMessages)
		}
		texts := make([]string, len(parts))
		for i, p := range parts {
			if p.Type != "text" {
				return "", broker.Fieldf(field, "has a part that is no text")
			}
			texts[i] = p.Text
		}
		return strings.Join(texts, "\n\n"), nil
	default:
		return "", broker.Fieldf(field, "must be a string or a list of text parts")
	}
}

// chatJob turns a request into a job.
func (s *Server) chatJob(c echo.Context, r *chatRequest, receivedAt time.Time) (*broker.Submission, error) {
	cfg := s.Config()
	class, ok := cfg.Classes[r.Model]
	if !ok {
		return nil, fieldProblem(http.StatusNotFound, wire.ReasonNoModel, "model", "no such model: models are the classes, see GET /v1/models")
	}
	text, instruction, err := r.words()
	if err != nil {
		return nil, err
	}
	sub := submission{Class: r.Model, Producer: chatProducer(c), Text: &text, Metadata: r.Metadata}
	if v := c.Request().Header.Get(wire.HeaderDeadline); v != "" {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return nil, broker.Fieldf(wire.HeaderDeadline, "must be a whole number of milliseconds from now, for example 15000")
		}
		sub.DeadlineMS = strconv.AppendInt(nil, n, 10)
	}
	// A limit above the class's is kept as well by the class's own.
	for _, limit := range []*int64{r.MaxTokens, r.MaxCompletionTokens} {
		if limit != nil && (sub.MaxOutputTokens == nil || *limit < *sub.MaxOutputTokens) {
			sub.MaxOutputTokens = new(min(*limit, int64(class.MaxOutputTokens)))
		}
	}
	job, err := sub.job(cfg, 0, receivedAt)
	if err != nil {
		return nil, inChat(err)
	}
	job.Instruction = instruction
	return job, nil
}

// chatProducer is whose job a chat completion is; empty without a producer's key.
func chatProducer(c echo.Context) string {
	if who := callerOf(c); who.role == roleProducer {
		return who.name
	}
	return ""
}

// inChat gives a submission's fields the names they have in a chat completion.
func inChat(err error) error {
	f, ok := errors.AsType[*broker.FieldError](err)
	if !ok {
		return err
	}
	names := map[string]string{"text": "messages", "deadline_ms": wire.HeaderDeadline, "max_output_tokens": "max_completion_tokens"}
	if name := names[f.Field]; name != "" {
		return broker.Fieldf(name, "%s", f.Detail)
	}
	return err
}
