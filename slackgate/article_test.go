package slackgate

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

const articleDoc = `{"paid_inflight": 2, "paid_limit": 2, "free_queue_age_ms": 8000, "free_inflight": 1, "enqueued_at_ms": 1700000000000, "now_ms": 1700000004000}`

func ExampleParseArticle() {
	a, err := ParseArticle([]byte(articleDoc))
	if err != nil {
		fmt.Println(err)
		return
	}
	r := a.Decide()
	fmt.Println(a.Line(&r))
	// Output: {"decision": "reject_no_slack", "slack_ms": 9000, "free_need_ms": 12000}
}

func TestParseArticleRefuses(t *testing.T) {
	with := func(old, new string) string { return strings.Replace(articleDoc, old, new, 1) }
	for _, c := range []struct{ name, doc, field string }{
		{"unknown field", with(`"paid_limit"`, `"paid_limits"`), "paid_limits"},
		{"other case", with(`"paid_limit"`, `"Paid_Limit"`), "Paid_Limit"},
		{"missing field", with(`"free_inflight": 1, `, ``), "free_inflight"},
		{"field twice", with(`"paid_limit": 2`, `"paid_limit": 2, "paid_limit": 3`), "paid_limit"},
		{"fraction", with(`8000`, `8000.5`), "free_queue_age_ms"},
		{"exponent", with(`8000`, `8e3`), "free_queue_age_ms"},
		{"too large", with(`8000`, `1e400`), "free_queue_age_ms"},
		{"beyond int64", with(`8000`, `99999999999999999999`), "free_queue_age_ms"},
		{"beyond the range", with(`8000`, `9007199254740993`), "free_queue_age_ms"},
		{"negative", with(`8000`, `-1`), "free_queue_age_ms"},
		{"string", with(`8000`, `"8000"`), "free_queue_age_ms"},
		{"null", with(`8000`, `null`), "free_queue_age_ms"},
		{"nested", with(`8000`, `{"a": 1}`), "free_queue_age_ms"},
		{"no deadline", with(`"now_ms"`, `"deadline_ms": 0, "now_ms"`), "deadline_ms"},
		{"no p95", with(`"now_ms"`, `"free_p95_first_byte_ms": 0, "now_ms"`), "free_p95_first_byte_ms"},
		{"long name", `{"` + strings.Repeat("x", 1000) + `": 1}`, strings.Repeat("x", 1000)},
		{"empty object", `{}`, "paid_inflight"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseArticle([]byte(c.doc))
			var fe *FieldError
			if !errors.As(err, &fe) || fe.Field != c.field {
				t.Fatalf("got %v, want an error on %q", err, c.field)
			}
			if len(err.Error()) > 200 {
				t.Fatalf("the error is %d bytes long", len(err.Error()))
			}
		})
	}
	for _, doc := range []string{"", "null", "[]", "3", `"x"`, "{", articleDoc[:40], articleDoc + "{}", articleDoc + "x", `{"paid_limit" 2}`, "\xff"} {
		if _, err := ParseArticle([]byte(doc)); err == nil {
			t.Errorf("%q was taken", doc)
		}
	}
	long := articleDoc + strings.Repeat(" ", MaxArticleBytes)
	if _, err := ParseArticle([]byte(long)); !errors.Is(err, ErrArticleTooLong) {
		t.Error(err)
	}
	if _, err := ParseArticle([]byte(long[:MaxArticleBytes])); err != nil {
		t.Error(err)
	}
}

func TestParseArticleOptional(t *testing.T) {
	a, err := ParseArticle([]byte(`{"paid_inflight": 0, "paid_limit": 0, "free_queue_age_ms": 0, "free_inflight": 0, "enqueued_at_ms": 0,
		"now_ms": 1, "deadline_ms": 900, "reserve_ms": 0, "paid_p95_first_byte_ms": 1, "free_p95_first_byte_ms": 898, "free_queue_age_cut_ms": 1}`))
	if err != nil {
		t.Fatal(err)
	}
	r := a.Decide()
	if r.Reason != ReasonFree || r.SlackMS != 899 {
		t.Fatalf("%+v", r)
	}
}

func FuzzParseArticle(f *testing.F) {
	f.Add([]byte(articleDoc))
	f.Add([]byte(`{"paid_inflight":0,"paid_limit":9007199254740992}`))
	f.Add([]byte(`{"a":{"b":[1]}}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		a, err := ParseArticle(doc)
		if err != nil {
			if a != (Article{}) {
				t.Fatal("a refused document left numbers behind")
			}
			return
		}
		if a.NowMS == 0 {
			a.NowMS = a.EnqueuedAtMS + 1
		}
		r := a.Decide()
		if r.Reason.Unavailable() {
			t.Fatalf("a document that was taken cannot be decided: %+v", a)
		}
		if r.Admitted() && r.SlackMS <= 0 {
			t.Fatalf("admitted without slack: %+v", r)
		}
	})
}
