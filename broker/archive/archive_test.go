package archive

import (
	"errors"
	"strings"
	"testing"

	"leeway/broker"
	"leeway/broker/ledger"
)

func TestBadURL(t *testing.T) {
	for _, url := range []string{"postgres://u:hunter2@h:port/db", "postgres://u:hunter2@h/db?sslmode=maybe", "host=h port=hunter2"} {
		_, err := New(Options{URL: url})
		if f, ok := errors.AsType[*broker.FieldError](err); !ok || f.Field != "archive.url" || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", url, err)
		}
	}
}

// Every column has a value, and every field that a reader of the ledger sees
// has a column.
func TestColumns(t *testing.T) {
	if n := len(spendTable.values("d", &broker.SpendRow{ID: "1-2"})); n != len(spendTable.columns) {
		t.Errorf("%d values for %d columns of spend", n, len(spendTable.columns))
	}
	if n := len(missTable.values("d", &broker.MissRow{ID: "1-2"})); n != len(missTable.columns) {
		t.Errorf("%d values for %d columns of misses", n, len(missTable.columns))
	}
	for header, columns := range map[*[]string][]string{&ledger.SpendHeader: spendTable.columns, &ledger.MissHeader: missTable.columns} {
		for _, h := range *header {
			if h != "id" && !strings.Contains(" "+strings.Join(columns, " ")+" ", " "+h+" ") {
				t.Errorf("%s has no column", h)
			}
		}
	}
}

func TestText(t *testing.T) {
	for in, want := range map[string]string{"": "", "ü": "ü", "a\x00b": "a\uFFFDb", "a\xffb": "a\uFFFDb"} {
		if got := text(in); got != want {
			t.Errorf("%q became %q", in, got)
		}
	}
}
