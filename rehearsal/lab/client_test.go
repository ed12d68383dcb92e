package lab

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// overTCP serves a lab on loopback and returns its base address.
func overTCP(t *testing.T, cfg Config) (*Server, string, *http.Client) {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l, nil) }()
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return s, "http://" + l.Addr().String() + "/v1", client
}

func params(model string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: model,
		Messages: []openai.ChatCompletionMessageParamUnion{
			openai.SystemMessage("Summarise in at most 200 words."),
			openai.UserMessage(article),
		},
	}
}

// The official Go client is content with the lab, and sees its faults as it
// would see them of any server.
func TestOfficialClient(t *testing.T) {
	_, base, httpClient := overTCP(t, Config{})
	client := openai.NewClient(option.WithBaseURL(base), option.WithAPIKey("unused"), option.WithHTTPClient(httpClient), option.WithMaxRetries(0))
	ctx := t.Context()

	page, err := client.Models.List(ctx)
	if err != nil || len(page.Data) != 1+len(FaultModels()) || page.Data[0].ID != DefaultModel {
		t.Errorf("models: %v, %+v", err, page)
	}
	if m, err := client.Models.Get(ctx, DefaultModel); err != nil || m.ID != DefaultModel {
		t.Errorf("model: %v, %+v", err, m)
	}

	whole, err := client.Chat.Completions.New(ctx, params(DefaultModel))
	if err != nil {
		t.Fatal(err)
	}
	text := whole.Choices[0].Message.Content
	if text == "" || whole.Choices[0].FinishReason != "stop" || whole.Usage.CompletionTokens != int64(CountTokens(text)) ||
		whole.Usage.TotalTokens != whole.Usage.PromptTokens+whole.Usage.CompletionTokens || !strings.HasPrefix(whole.ID, "chatcmpl-") {
		t.Errorf("completion %s", whole.RawJSON())
	}

	stream := func(model string) (openai.ChatCompletionAccumulator, error) {
		p := params(model)
		p.StreamOptions.IncludeUsage = openai.Bool(true)
		s := client.Chat.Completions.NewStreaming(ctx, p)
		var acc openai.ChatCompletionAccumulator
		for s.Next() {
			if !acc.AddChunk(s.Current()) {
				t.Errorf("%s: chunk does not fit: %s", model, s.Current().RawJSON())
			}
		}
		return acc, errors.Join(s.Err(), s.Close())
	}
	for _, model := range []string{DefaultModel, "fault-ok", "fault-no-space", "fault-comments", "fault-no-done", "fault-big-line", "fault-usage-forms"} {
		acc, err := stream(model)
		if err != nil || acc.Choices[0].Message.Content != text || acc.Choices[0].FinishReason != "stop" || acc.Usage.TotalTokens != whole.Usage.TotalTokens {
			t.Errorf("%s: %v, %+v", model, err, acc.ChatCompletion)
		}
	}
	if acc, err := stream("fault-tool-only"); err != nil || len(acc.Choices[0].Message.ToolCalls) != 1 {
		t.Errorf("tool call: %v, %+v", err, acc.ChatCompletion)
	}
	for model, want := range map[string]int{
		"fault-throttled": 429, "fault-down": 503, "fault-auth": 401, "fault-context-length": 400, "fault-refused": 400, "gpt": 404,
	} {
		_, err := client.Chat.Completions.New(ctx, params(model))
		var api *openai.Error
		if !errors.As(err, &api) || api.StatusCode != want || api.Message == "" {
			t.Errorf("%s: %v, want a %d", model, err, want)
		}
	}
	for _, model := range []string{"fault-reset", "fault-cut.abrupt", "fault-bad-chunk", "fault-error-in-200"} {
		if _, err := stream(model); err == nil {
			t.Errorf("%s: no error", model)
		}
	}
}

// On a real network, too, the reset is one, and a shut door refuses.
func TestResetAndRefusedOverTCP(t *testing.T) {
	s, base, client := overTCP(t, Config{})
	post := func(model string) error {
		body := strings.NewReader(`{"model":"` + model + `","messages":[{"role":"user","content":"Hi."}]}`)
		resp, err := client.Post(base+"/chat/completions", "application/json", body)
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	if err := post("fault-reset"); err == nil || !strings.Contains(err.Error(), "connection reset by peer") {
		t.Errorf("reset: %v", err)
	}
	for range 3 {
		if err := s.SetFault(Fault{Name: "down.refused"}); err != nil {
			t.Fatal(err)
		}
		if err := post(DefaultModel); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("refused: %v", err)
		}
		s.ClearFault()
		if err := post(DefaultModel); err != nil {
			t.Errorf("reopened: %v", err)
		}
	}
}
