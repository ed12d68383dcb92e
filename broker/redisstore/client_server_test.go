//go:build server

package redisstore

import (
	"strings"
	"testing"
	"time"

	"leeway/rehearsal/redistest"
)

// A server with a password, a user of its own with no more rights than needed,
// and another database than the first: a job's whole life runs there, and the
// wrong password is an unavailable store whose error does not repeat it.
func TestPasswordUserDatabase(t *testing.T) {
	srv := redistest.Start(t, "--requirepass", "admin-secret")
	admin, err := Client("redis://:admin-secret@"+srv.Addr()+"/0", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close() }()
	// As the README gives them.
	rights := []any{"ACL", "SETUSER", "leeway", "on", ">job-secret", "~{*}*", "~asynq:*", "&{*}*", "&asynq:*", "+@all", "-@dangerous", "+info"}
	if err := admin.Do(bg, rights...).Err(); err != nil {
		t.Fatal(err)
	}
	for name, url := range map[string]string{
		"password": "redis://:admin-secret@" + srv.Addr() + "/3",
		"user":     "redis://leeway:job-secret@" + srv.Addr() + "/5",
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, url)
			wholeLife(t, h)
			if d, err := h.Durability(bg); err != nil || len(d.Risks()) != 0 {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
	rdb, err := Client("redis://leeway:wrong-secret@"+srv.Addr()+"/0", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rdb.Close() }()
	err = New(rdb, Options{Prefix: "p", Timeout: time.Second}).SyncClock(bg)
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("with the wrong password: %v", err)
	}
}

// A server that may forget or evict says so.
func TestDurability(t *testing.T) {
	srv := redistest.Start(t, "--appendonly", "no", "--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")
	rdb, err := Client(srv.URL(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rdb.Close() }()
	d, err := New(rdb, Options{Prefix: "p", Timeout: time.Second}).Durability(bg)
	if err != nil || d.AppendOnly || d.EvictionPolicy != "allkeys-lru" || len(d.Risks()) != 2 {
		t.Errorf("%+v, %v", d, err)
	}
}
