package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"go.uber.org/goleak"

	"leeway/rehearsal/corpus"
	"leeway/rehearsal/lab"
	"leeway/rehearsal/lab/extract"
)

// startLab runs the command and returns the addresses it printed.
func startLab(t *testing.T, c labCmd) (base, control string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(c.Run(ctx, in), in.Close()) }()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		cancel()
		t.Fatalf("no line printed: %v; Run: %v", err, <-ended)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	m := regexp.MustCompile(`on (http://\S+/v1), control on (http://\S+/control)`).FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("line %q names no addresses", line)
	}
	return m[1], m[2]
}

func TestLabAnswersTheOfficialClientWithRealSummaries(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t, goleak.IgnoreCurrent()) })
	base, control := startLab(t, labCmd{
		Addr: "127.0.0.1:0", Control: "127.0.0.1:0", Model: "lab-paid", Profile: "fixed:1ms", Tail: "1ms", Slots: 2, Queue: 10,
	})
	httpClient := &http.Client{Transport: &http.Transport{}}
	defer httpClient.CloseIdleConnections()
	client := openai.NewClient(option.WithBaseURL(base), option.WithAPIKey("unused"), option.WithHTTPClient(httpClient), option.WithMaxRetries(0))
	docs := corpus.Documents()
	for _, doc := range docs {
		stream := client.Chat.Completions.NewStreaming(t.Context(), openai.ChatCompletionNewParams{
			Model: "lab-paid",
			Messages: []openai.ChatCompletionMessageParamUnion{
				openai.SystemMessage("Summarise the text in at most 200 words."),
				openai.UserMessage(doc.Text),
			},
			StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
		})
		var acc openai.ChatCompletionAccumulator
		for stream.Next() {
			if !acc.AddChunk(stream.Current()) {
				t.Fatalf("%s: chunk does not fit the others", doc.Name)
			}
		}
		if err := errors.Join(stream.Err(), stream.Close()); err != nil {
			t.Fatalf("%s: %v", doc.Name, err)
		}
		text := acc.Choices[0].Message.Content
		if n := extract.CountWords(text); n == 0 || n > 200 {
			t.Errorf("%s: summary of %d words", doc.Name, n)
		}
		sentences := extract.Sentences(doc.Text)
		for line := range strings.SplitSeq(text, "\n") {
			if !slices.Contains(sentences, line) {
				t.Errorf("%s: %q is no sentence of it", doc.Name, line)
			}
			if !strings.Contains(extract.Fold(doc.Text), line) {
				t.Errorf("%s: %q does not stand in it", doc.Name, line)
			}
		}
		if acc.Choices[0].FinishReason != "stop" || acc.Usage.CompletionTokens != int64(lab.CountTokens(text)) || acc.Usage.PromptTokens == 0 {
			t.Errorf("%s: finish %q, usage %+v", doc.Name, acc.Choices[0].FinishReason, acc.Usage)
		}
	}
	resp, err := http.Get(control + "/attempts")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	log, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(log), `"ended":"ok"`); got != len(docs) {
		t.Errorf("%d attempts logged as ok, want %d", got, len(docs))
	}
}

func TestLabSaysWhichFlagIsWrong(t *testing.T) {
	good := labCmd{Addr: "127.0.0.1:0", Control: "127.0.0.1:0", Profile: "fixed:1s", Tail: "0", Queue: 1}
	for _, tt := range []struct {
		name string
		bad  func(c *labCmd)
		want string
	}{
		{"profile", func(c *labCmd) { c.Profile = "slow" }, "--profile"},
		{"tail", func(c *labCmd) { c.Tail = "-1s" }, "--tail"},
		{"fault", func(c *labCmd) { c.Fault = "meteor" }, "--fault"},
		{"slots", func(c *labCmd) { c.Slots = -1 }, "Slots"},
		{"addr", func(c *labCmd) { c.Addr = "256.0.0.1:x" }, "--addr"},
		{"control", func(c *labCmd) { c.Control = "256.0.0.1:x" }, "--control"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := good
			tt.bad(&c)
			if err := c.Run(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one that names %s", err, tt.want)
			}
		})
	}
}
