package httpapi

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"leeway/broker"
	"leeway/broker/ledger"
	"leeway/broker/wire"
	"leeway/slackgate"
)

// book lets a job of a producer be admitted, attempted and settled.
func (a *api) book(producer string, finish *broker.Finish) {
	a.t.Helper()
	a.admitted(fmt.Sprintf(`{"text":"x","deadline_ms":600000,"producer":%q}`, producer))
	c := a.claim()
	row := broker.SpendRow{
		JobID: c.ID, Attempt: 1, Path: slackgate.Paid, Class: c.Class, Producer: c.Producer, Backend: "lab", Model: "m",
		Currency: "USD", PriceVersion: "1", Priced: true, MaxCostMicro: 9,
	}
	a.must(a.store.OpenSpend(context.Background(), c, &row))
	row.InputTokens, row.OutputTokens, row.CostMicro, row.Known, row.Result = 3, 4, 7, broker.KnownReported, "whole"
	_, err := a.store.Finish(context.Background(), c, finish, row)
	a.must(err)
}

// A row that nobody can read is named beside the others.
func TestUnreadableRow(t *testing.T) {
	inAPI(t, "", func(a *api) {
		prefix := "{" + a.cfg.Redis.Prefix + "}"
		a.book("p", &broker.Finish{Outcome: broker.OutcomeEmpty, Cause: broker.CauseEmpty, FirstByteMS: -1})
		bad, err := a.redis.XAdd(prefix+":ledger:spend", "*", []string{"row", "{"})
		a.must(err)
		a.redis.HSet(prefix+":spend:open", "j/1", "{")
		a.book("p", &broker.Finish{Outcome: broker.OutcomeUsable, Answer: "x", FirstByteMS: 5})
		var page broker.Page[broker.SpendRow]
		a.read("/v1/ledgers/spend", &page)
		if u := page.Unreadable; len(page.Rows) != 2 || len(u) != 2 || u[0].ID != bad || u[1].ID != "j/1" || u[0].Why == "" {
			t.Errorf("%+v", page)
		}
		for _, format := range []string{"csv", "ndjson"} {
			if w := a.send(http.MethodGet, "/v1/ledgers/spend?format="+format, ""); w.Code != 200 || strings.Count(w.Body.String(), "lab") != 2 {
				t.Errorf("%s: %d %s", format, w.Code, w.Body)
			}
		}
		var report ledger.Report
		a.read("/v1/ledgers/check", &report)
		if report.Balanced {
			t.Error("the books are said to balance")
		}
	})
}

func TestLedgerStreams(t *testing.T) {
	inAPI(t, "", func(a *api) {
		a.book("p1", &broker.Finish{Outcome: broker.OutcomeUsable, Answer: "x", FirstByteMS: 5})
		a.book("=1+1", &broker.Finish{Outcome: broker.OutcomeEmpty, Cause: broker.CauseEmpty, FirstByteMS: -1, Backend: "lab"})
		for range 3 {
			a.submit(`{"text":"x","deadline_ms":1,"producer":"p1"}`)
		}
		for _, tt := range []struct {
			query, accept string
			rows          int
			header        []string
		}{
			{"/v1/ledgers/spend?format=csv", "", 2, ledger.SpendHeader},
			{"/v1/ledgers/spend", "text/html, text/csv;q=0.9", 2, ledger.SpendHeader},
			{"/v1/ledgers/spend?format=csv&producer=p1", "", 1, ledger.SpendHeader},
			{"/v1/ledgers/misses?format=csv", "", 4, ledger.MissHeader},
			{"/v1/ledgers/misses?format=csv&path=reject&limit=2", "", 2, ledger.MissHeader},
			{"/v1/ledgers/misses?format=csv&cause=empty", "", 1, ledger.MissHeader},
			{"/v1/ledgers/rollups?ledger=spend&format=csv&group=", "", 1, ledger.SumHeader(ledger.Spend)},
			{"/v1/ledgers/rollups?ledger=misses&by=hour&format=csv", "", 2, ledger.SumHeader(ledger.Misses)},
		} {
			w := a.send(http.MethodGet, tt.query, "", "Accept", tt.accept)
			records, err := csv.NewReader(w.Body).ReadAll()
			if err != nil || w.Code != 200 || w.Header().Get("Content-Type") != "text/csv; charset=utf-8" {
				t.Fatalf("%s: %d %s %v", tt.query, w.Code, w.Header(), err)
			}
			if len(records) != 1+tt.rows || !slices.Equal(records[0], tt.header) {
				t.Errorf("%s: %d rows, header %v", tt.query, len(records)-1, records[0])
			}
			for _, r := range records {
				for _, cell := range r {
					if strings.HasPrefix(cell, "=") {
						t.Errorf("%s: a spreadsheet would run %q", tt.query, cell)
					}
				}
			}
		}
		w := a.send(http.MethodGet, "/v1/ledgers/spend", "", "Accept", "application/x-ndjson")
		n := 0
		for line := range strings.Lines(w.Body.String()) {
			var r broker.SpendRow
			if err := json.Unmarshal([]byte(line), &r); err != nil || r.CostMicro != 7 || r.ID == "" || r.OpenedAtMS != 0 && r.DueAtMS != 0 {
				t.Errorf("%s: %v", line, err)
			}
			n++
		}
		if n != 2 || w.Header().Get("Content-Type") != "application/x-ndjson" {
			t.Errorf("%d lines, %s", n, w.Header())
		}
	})
}

func TestLedgerPages(t *testing.T) {
	inAPI(t, "", func(a *api) {
		begin := time.Now().UnixMilli()
		a.book("p1", &broker.Finish{Outcome: broker.OutcomeUsable, Answer: "x", FirstByteMS: 5})
		time.Sleep(90 * time.Second)
		a.book("p2", &broker.Finish{Outcome: broker.OutcomeUsable, Answer: "x", FirstByteMS: 5})
		for query, want := range map[string]int{
			"":                                     2,
			"?producer=p2":                         1,
			"?backend=other":                       0,
			"?known=reported":                      2,
			"?known=unknown":                       0,
			"?path=free":                           0,
			"?class=summary":                       2,
			"?format=json":                         2,
			fmt.Sprintf("?from_ms=%d", begin+1000): 1,
			fmt.Sprintf("?to_ms=%d", begin+1000):   1,
		} {
			var page struct {
				Rows  []broker.SpendRow `json:"rows"`
				Reach int64             `json:"reaches_back_to_ms"`
			}
			w := a.send(http.MethodGet, "/v1/ledgers/spend"+query, "", "Accept", "*/*")
			if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil || len(page.Rows) != want || page.Reach != begin {
				t.Errorf("%s: %d rows, reaching back to %d, want %d and %d: %v", query, len(page.Rows), page.Reach, want, begin, err)
			}
		}
	})
}

func TestLedgerParameters(t *testing.T) {
	inAPI(t, "", func(a *api) {
		for query, field := range map[string]string{
			"spend?producr=x": "producr", "spend?cause=empty": "cause", "misses?known=reported": "known", "misses?cause=bored": "cause",
			"misses?outcome=bored": "outcome", "spend?known=x": "known", "spend?path=gold": "path", "spend?from_ms=-1": "from_ms",
			"spend?from_ms=x": "from_ms", "spend?to_ms=0": "to_ms", "spend?to_ms=99999999999999999999": "to_ms", "spend?format=xml": "format",
			"spend?class=a&class=b": "class", "spend?producer=" + strings.Repeat("x", 65): "producer",
			"rollups": "ledger", "rollups?ledger=both": "ledger", "rollups?ledger=spend&by=day": "by", "rollups?ledger=spend&group=path,colour": "group",
			"rollups?ledger=spend&cause=empty": "cause", "rollups?ledger=spend&from_ms=1&to_ms=2678400002": "from_ms", "check?x=1": "x",
		} {
			if w := a.send(http.MethodGet, "/v1/ledgers/"+query, ""); w.Code != 400 || w.reason() != "invalid_field "+field {
				t.Errorf("%s: %d %s", query, w.Code, w.Body)
			}
		}
	})
}

func TestRollups(t *testing.T) {
	inAPI(t, "", func(a *api) {
		get := func(query string) *wire.RollupAnswer {
			t.Helper()
			var got wire.RollupAnswer
			w := a.send(http.MethodGet, "/v1/ledgers/rollups?"+query, "")
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 {
				t.Fatalf("%s: %d %s", query, w.Code, w.Body)
			}
			return &got
		}
		begin := time.Now().UnixMilli()
		usable := &broker.Finish{Outcome: broker.OutcomeUsable, Answer: "x", FirstByteMS: 5}
		a.book("p1", usable)
		a.book("p:2", usable)
		time.Sleep(5 * time.Minute)
		a.book("p1", &broker.Finish{Outcome: broker.OutcomeEmpty, Cause: broker.CauseEmpty, FirstByteMS: -1, Backend: "lab"})
		a.submit(`{"text":"x","deadline_ms":1}`)

		all := get("ledger=spend")
		if len(all.Rows) != 3 || all.Rows[0].Producer != "p1" || all.Rows[1].Producer != "p:2" || all.Rows[0].AtMS != begin-begin%60_000 || all.Rows[2].AtMS != all.Rows[0].AtMS+300_000 {
			t.Fatalf("%+v", all)
		}
		one := get("ledger=spend&by=hour&group=")
		s := one.Rows[0]
		if len(one.Rows) != 1 || s.Attempts != 3 || s.InputTokens != 9 || s.OutputTokens != 12 || s.SpentTokens != 21 || s.CostMicro["USD"] != 21 || s.Known["reported"] != 3 || s.Path != "" || s.Producer != "" {
			t.Errorf("%+v %+v", s, s.SpendSum)
		}
		if got := get("ledger=spend&group=path&producer=p1"); len(got.Rows) != 2 || got.Rows[0].Path != "paid" || got.Rows[0].Attempts != 1 {
			t.Errorf("%+v", got.Rows)
		}
		misses := get("ledger=misses&group=path")
		if len(misses.Rows) != 2 || misses.Rows[0].Path != "paid" || misses.Rows[0].Causes["empty"] != 1 || misses.Rows[1].Path != "reject" || misses.Rows[1].Misses != 1 || misses.Rows[1].SpendSum != nil {
			t.Errorf("%+v", misses.Rows)
		}
		if got := get("ledger=misses&cause=empty&backend=lab"); len(got.Rows) != 1 {
			t.Errorf("%+v", got.Rows)
		}
		if got := get(fmt.Sprintf("ledger=spend&from_ms=%d", begin+120_000)); len(got.Rows) != 1 || got.FromMS != begin+120_000-(begin+120_000)%60_000 {
			t.Errorf("%+v", got)
		}
	})
}

func TestCheckRoute(t *testing.T) {
	inAPI(t, "", func(a *api) {
		a.book("p1", &broker.Finish{Outcome: broker.OutcomeEmpty, Cause: broker.CauseEmpty, FirstByteMS: -1})
		a.admitted(`{"text":"x","deadline_ms":600000}`)
		check := func() (r ledger.Report) {
			t.Helper()
			w := a.send(http.MethodGet, "/v1/ledgers/check", "")
			if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil || w.Code != 200 {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			return r
		}
		if r := check(); !r.Balanced || len(r.Items) != 10 || r.Totals["admitted:paid"] != 2 {
			t.Errorf("%+v", r)
		}
		a.redis.HIncrBy("{leeway}:totals", "miss:paid", 1)
		if r := check(); r.Balanced {
			t.Errorf("%+v", r)
		}
		a.loseRedis(false)
		if w := a.send(http.MethodGet, "/v1/ledgers/check", ""); w.Code != http.StatusServiceUnavailable {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		a.findRedis()
	})
}

// cutter loses Redis once the first page has gone out.
type cutter struct {
	*httptest.ResponseRecorder
	cut func()
}

func (c *cutter) Flush() { c.cut() }

// A stream whose store goes away is cut off, so that its reader sees that it
// is not whole.
func TestBrokenStream(t *testing.T) {
	inAPI(t, "", func(a *api) {
		for i := range 1500 {
			_, err := a.redis.XAdd("{leeway}:ledger:miss", fmt.Sprintf("%d-1", 1000+i), []string{"job_id", "j", "path", "paid", "admission", "{}"})
			a.must(err)
		}
		if w := a.send(http.MethodGet, "/v1/ledgers/misses?format=ndjson", ""); w.Code != 200 || strings.Count(w.Body.String(), "\n") != 1500 {
			t.Fatalf("%d, %d rows", w.Code, strings.Count(w.Body.String(), "\n"))
		}
		w := &cutter{ResponseRecorder: httptest.NewRecorder(), cut: func() { a.loseRedis(false) }}
		var got any
		func() {
			defer func() { got = recover() }()
			a.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodGet, ownURL+"/v1/ledgers/misses?format=ndjson", nil))
		}()
		if err, _ := got.(error); !errors.Is(err, http.ErrAbortHandler) || strings.Count(w.Body.String(), "\n") != 1000 {
			t.Errorf("ended with %v after %d rows", got, strings.Count(w.Body.String(), "\n"))
		}
		a.findRedis()
	})
}
