package redistest

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// lasting are the keys of a deployment that have no end of their own: there is
// one of each, or one for each pool, and each is bounded whatever comes in.
var lasting = regexp.MustCompile(`^(layout|shards|seq|totals|swept|back|strays|audit|fleet|flags|flags:version|backends:out` +
	`|ledger:(spend|miss)|(workers|released):(paid|free))$`)

// unfinished are those that hold jobs and attempts which have not ended, and go
// with the last of them.
var unfinished = regexp.MustCompile(`^((waiting|running|started|silent):(paid|free)|age:(paid|free)(:.*)?|spend:(open|due)|budget:(held|reserved))$`)

// longest is what the longest of the retentions may be in a test.
const longest = 31 * 24 * time.Hour

// Remains checks that of a deployment's keys only those stay after their
// retention that are meant to. ttls are the server's keys with the time each has
// to live; 0 or less: no end. idle says that every job has ended. asynq's own
// keys are asynq's affair.
func Remains(tb testing.TB, prefix string, ttls map[string]time.Duration, idle bool) {
	tb.Helper()
	for key, ttl := range ttls {
		name, ours := strings.CutPrefix(key, "{"+prefix+"}:")
		switch {
		case !ours, lasting.MatchString(name), !idle && unfinished.MatchString(name), 0 < ttl && ttl <= longest:
		case ttl > 0:
			tb.Errorf("key %s is to stay for %v", key, ttl)
		default:
			tb.Errorf("key %s stays for ever", key)
		}
	}
}

// RemainsIn is [Remains] for an embedded Redis; jobs may be unfinished.
func RemainsIn(tb testing.TB, prefix string, m *miniredis.Miniredis) {
	tb.Helper()
	ttls := map[string]time.Duration{}
	for _, key := range m.Keys() {
		ttls[key] = m.TTL(key)
	}
	Remains(tb, prefix, ttls, false)
}
