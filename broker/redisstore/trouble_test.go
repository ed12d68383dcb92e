//go:build server

package redisstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"leeway/broker"
	"leeway/rehearsal/redistest"
	"leeway/slackgate"
)

// TestTroubleNamed: each way in which a real server cannot be used is
// ErrUnavailable under its own name, within the time limit.
func TestTroubleNamed(t *testing.T) {
	srv := redistest.Start(t)
	h := newHarnessWith(t, srv.URL(), Options{Prefix: "trouble", Timeout: testTimeout, Keep: time.Hour, LedgerRows: 100_000})
	h.live(10, 10)
	admit := func(url string) (broker.Trouble, time.Duration) {
		t.Helper()
		rdb, err := Client(url, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = rdb.Close() }()
		s := &harness{Store: New(rdb, Options{Prefix: strings.Trim(h.prefix, "{}"), Timeout: time.Second}), t: t}
		begun := time.Now()
		_, err = s.Admit(bg, openPools(), []broker.Offer{offerTo(slackgate.Paid, testJob("j", 60_000))})
		if !errors.Is(err, broker.ErrUnavailable) {
			t.Errorf("%v is not ErrUnavailable", err)
		}
		return broker.TroubleOf(err), time.Since(begun)
	}
	set := func(args ...any) {
		t.Helper()
		h.must(h.rdb.Do(bg, args...).Err())
	}
	for _, tt := range []struct {
		want        broker.Trouble
		begin, heal func()
	}{
		{broker.TroubleFull, func() { set("CONFIG", "SET", "maxmemory", "1") }, func() { set("CONFIG", "SET", "maxmemory", "0") }},
		{broker.TroubleReadOnly, func() { set("REPLICAOF", "127.0.0.1", "1") }, func() { set("REPLICAOF", "NO", "ONE") }},
		{broker.TroubleNoReplicas, func() { set("CONFIG", "SET", "min-replicas-to-write", "1") }, func() { set("CONFIG", "SET", "min-replicas-to-write", "0") }},
		{broker.TroubleNoAccess, func() { set("CONFIG", "SET", "requirepass", "x") }, func() { set("CONFIG", "SET", "requirepass", "") }},
		{broker.TroubleLayout, func() { set("SET", h.key("layout"), "9 9") }, func() { set("DEL", h.key("layout")) }},
		{broker.TroubleNoAnswer, srv.Pause, srv.Resume},
		{broker.TroubleNoConnection, srv.Kill, srv.Run},
	} {
		tt.begin()
		got, took := admit(srv.URL())
		tt.heal()
		if got != tt.want {
			t.Errorf("%s is named %s", tt.want, got)
		}
		if took > testTimeout {
			t.Errorf("%s took %v", tt.want, took)
		}
	}
	if got := troubleOf(errors.New("what")); got != broker.TroubleOther {
		t.Errorf("an unknown error is named %s", got)
	}
	said := map[string]bool{}
	for _, tr := range broker.Troubles {
		said[tr.Sentence()] = true
	}
	if len(said) != len(broker.Troubles) {
		t.Errorf("two troubles have one sentence: %v", said)
	}
	h.ends() // not when the test is cleaned up: the last server to be started ends before
}
