//go:build server && accept

package e2e_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"leeway/rehearsal/proctest"
)

// TestAcceptLargeBatch is the same with 10,000 documents, some 20 MB, in one
// stream.
func TestAcceptLargeBatch(t *testing.T) { largeBatch(t, 10_000, 7*time.Minute) }

// TestAcceptExampleWithManyLines is the example in Python, whose client sends all
// before it reads any, with as many lines as a batch may have.
func TestAcceptExampleWithManyLines(t *testing.T) {
	const lines = 100_000
	producers, _ := programs(t)
	program, err := os.ReadFile(producers["python"])
	if err != nil {
		t.Fatal(err)
	}
	many := strings.Replace(string(program), "for n in (1, 2, 3)", "for n in range(100_000)", 1)
	if err := os.WriteFile(producers["python"], []byte(many), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	d := deploy(t, quick())
	d.startWorker()
	d.startAPI()
	d.ready()
	out := &proctest.Capture{}
	cmd := command(ctx, t, "python", producers["python"])
	cmd.Env = append(os.Environ(), "LEEWAY_API="+d.client.Base)
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	got := len(regexp.MustCompile(`(?m)^doc-[0-9]+ (202|429) `).FindAllString(out.String(), -1))
	if err != nil || got != lines || !strings.Contains(out.String(), "\nresults: ") {
		t.Errorf("%d verdicts, %v:\n%s", got, err, proctest.Tail(out.String()))
	}
}
