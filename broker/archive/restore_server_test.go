//go:build server

package archive

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var console = regexp.MustCompile("(?s)```console\n(.*?)```")

// page runs the commands of the backup page that begin with program, as they
// are printed there.
func (w *world) page(dir, program string) string {
	w.t.Helper()
	text, err := os.ReadFile("../../runbooks/ledger-backup.md")
	w.must(err)
	var printed strings.Builder
	n := 0
	for _, block := range console.FindAllSubmatch(text, -1) {
		for line := range strings.Lines(string(block[1])) {
			command, ok := strings.CutPrefix(line, "$ "+program+" ")
			if !ok {
				continue
			}
			n++
			cmd := exec.Command("bash", "-euo", "pipefail", "-c", program+" "+command)
			cmd.Dir = dir
			cmd.Env = append(slices.Clone(os.Environ()), "LEEWAY_ARCHIVE_URL="+w.pg.URL())
			out, err := cmd.CombinedOutput()
			if err != nil {
				w.t.Fatalf("%s: %v\n%s", line, err, out)
			}
			printed.Write(out)
		}
	}
	if n == 0 {
		w.t.Fatalf("the page has no command that begins with %s", program)
	}
	return printed.String()
}

// The backup page's own commands: rows that came after the backup are taken
// again from Redis, none is there twice, and nothing that the backup does not
// know of survives the restore.
func TestBackupPage(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	o := Options{BatchRows: 32, Window: time.Hour}
	stop := w.run(o)
	defer func() { stop() }()
	w.book(200)
	w.caughtUp()
	w.page(dir, "pg_dump")

	w.book(100)
	w.caughtUp()
	w.archived()
	w.page(dir, "pg_restore") // with the archiver running
	var restored int64
	w.query("SELECT count(*) FROM leeway.spend", &restored)
	if restored < 200 {
		t.Errorf("%d rows after the restore, the backup held 200", restored)
	}
	w.book(50)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var spend, misses int64
		w.query("SELECT (SELECT count(*) FROM leeway.spend), (SELECT count(*) FROM leeway.miss)", &spend, &misses)
		if spend == 350 && misses == 350 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d and %d rows, booked were 350 of each", spend, misses)
		}
	}
	w.caughtUp()
	w.archived()
	w.balanced()
	sums := w.page(dir, "psql")
	for _, want := range []string{"arrived_without_slack", "USD"} {
		if !strings.Contains(sums, want) {
			t.Errorf("the page's queries do not tell of %s:\n%s", want, sums)
		}
	}
}
