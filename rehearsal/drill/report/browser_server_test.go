//go:build server

package report

import (
	"bytes"
	"context"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// chromium runs the browser without a window and returns what it prints.
func chromium(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	args = append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
		"--user-data-dir=" + t.TempDir(), "--window-size=1040,2400",
	}, args...)
	cmd := exec.CommandContext(ctx, "chromium", args...)
	cmd.WaitDelay = 5 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("chromium: %v\n%s", err, stderr.String())
	}
	return string(out)
}

// The report is opened in a real browser: its charts are in the document, and
// what is painted is not blank.
func TestBrowser(t *testing.T) {
	e := simulated(t, "free-slow", false)
	dir := t.TempDir()
	file := filepath.Join(dir, "report.html")
	var page bytes.Buffer
	if err := HTML(&page, e); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, page.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	dom := chromium(t, "--dump-dom", "file://"+file)
	for _, want := range []string{`id="decisions-0"><svg`, `id="timeline-0"><svg`, `id="waits-0"><svg`, "every threshold held", "no schedule beats"} {
		if !strings.Contains(dom, want) {
			t.Errorf("the document has no %s", want)
		}
	}
	shot := filepath.Join(dir, "report.png")
	chromium(t, "--screenshot="+shot, "file://"+file)
	raw, err := os.Open(shot)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	img, err := png.Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	type colour struct{ r, g, b uint32 }
	seen := map[colour]int{}
	b := img.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y += 2 {
		for x := b.Min.X; x < b.Max.X; x += 2 {
			r, g, bl, _ := img.At(x, y).RGBA()
			seen[colour{r >> 8, g >> 8, bl >> 8}]++
		}
	}
	for name, c := range map[string]colour{"paid": {0x2b, 0x6c, 0xb0}, "free": {0x2f, 0x85, 0x5a}, "rejected": {0xa0, 0xae, 0xc0}, "missed": {0xc5, 0x30, 0x30}} {
		if seen[c] < 50 {
			t.Errorf("%s: %d points of its colour are painted", name, seen[c])
		}
	}
}
