package redisstore

import (
	"slices"
	"strings"
	"testing"
	"time"

	"leeway/broker"

	"github.com/redis/go-redis/v9"
)

// What a URL leads to, and the bounds that every client has.
func TestClientURL(t *testing.T) {
	for _, tt := range []struct{ name, url, kind string }{
		{"one server", "redis://u:p@127.0.0.1:1/3", "one"},
		{"TLS", "rediss://127.0.0.1:1", "one"},
		{"socket", "unix:///run/redis.sock?db=2", "one"},
		{"cluster", "redis://u:p@127.0.0.1:1?addr=127.0.0.1:2&addr=127.0.0.1:3", "cluster"},
		{"sentinel", "redis://su:sp@127.0.0.1:1/3?master_name=m&addr=127.0.0.1:2&username=u&password=p", "sentinel"},
	} {
		o, err := universal(tt.url)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		rdb, err := Client(tt.url, 123*time.Millisecond)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		switch c := rdb.(type) {
		case *redis.Client:
			if got := c.Options(); tt.kind == "cluster" || got.ReadTimeout != 123*time.Millisecond || got.DialTimeout != 123*time.Millisecond ||
				!got.ContextTimeoutEnabled || got.MaxRetries > 0 {
				t.Errorf("%s: %+v", tt.name, got)
			}
			if tt.name == "socket" && (c.Options().Network != "unix" || c.Options().DB != 2) {
				t.Errorf("%s: %+v", tt.name, c.Options())
			}
		case *redis.ClusterClient:
			if got := c.Options(); tt.kind != "cluster" || len(got.Addrs) != 3 || got.ReadTimeout != 123*time.Millisecond || !got.ContextTimeoutEnabled {
				t.Errorf("%s: %+v", tt.name, got)
			}
		default:
			t.Errorf("%s: %T", tt.name, rdb)
		}
		if wantTLS := tt.name == "TLS"; (o.TLSConfig != nil) != wantTLS {
			t.Errorf("%s: TLS %v", tt.name, o.TLSConfig)
		}
		if tt.name != "TLS" && tt.name != "socket" && (o.Username != "u" || o.Password != "p") {
			t.Errorf("%s: user %q", tt.name, o.Username)
		}
		if tt.kind == "sentinel" && (o.MasterName != "m" || o.SentinelUsername != "su" || o.SentinelPassword != "sp" || o.DB != 3 || len(o.Addrs) != 2) {
			t.Errorf("%s: %+v", tt.name, o)
		}
		_ = rdb.Close()
	}
	for _, bad := range []string{
		"", "http://h", "redis://u:secret@h:1/x", "redis://u:secret@h:1?addr=nonsense", "redis://u:secret@h:1?master_name=m&addr=x",
		"redis://u:secret@h:1?no_such_option=1", "redis://u:secret@h:1\x7f",
	} {
		if _, err := Client(bad, time.Second); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestRisks(t *testing.T) {
	for _, tt := range []struct {
		name string
		d    broker.Durability
		want []string // the setting that each risk names
	}{
		{"as it should be", broker.Durability{EvictionPolicy: "noeviction", AppendOnly: true}, nil},
		{"evicts", broker.Durability{EvictionPolicy: "allkeys-lru", AppendOnly: true}, []string{"maxmemory-policy"}},
		{"forgets", broker.Durability{EvictionPolicy: "noeviction"}, []string{"appendonly"}},
		{"a replica", broker.Durability{EvictionPolicy: "noeviction", AppendOnly: true, Replica: true}, []string{"replica"}},
		{"everything", broker.Durability{EvictionPolicy: "volatile-ttl", Replica: true}, []string{"maxmemory-policy", "appendonly", "replica"}},
	} {
		got := tt.d.Risks()
		if len(got) != len(tt.want) || slices.ContainsFunc(tt.want, func(w string) bool {
			return !slices.ContainsFunc(got, func(g string) bool { return strings.Contains(g, w) })
		}) {
			t.Errorf("%s: %q", tt.name, got)
		}
	}
}
