//go:build bench

package bench

import (
	"context"
	"flag"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"leeway/broker/config"
	"leeway/rehearsal/redistest"
)

var manyJobs = flag.Int("jobs", 0, "how many jobs TestMany takes to their end; 0: as many as one part of them has")

// manyPart is how many jobs are submitted and have ended before the next are.
const manyPart = 20_000

// manyKeep is how long their records and answers stay.
const manyKeep = time.Minute

// TestMany takes jobs by the million through one Redis to their end: the rate does
// not fall, and what is left of them goes.
func TestMany(t *testing.T) {
	g := newGate(t, 0, 100)
	newWorkerFor(t, g, 128, http.HandlerFunc(answer), func(cfg *config.Config) {
		cfg.Keep = config.Keep{ResultMS: manyKeep.Milliseconds(), LedgerRows: 100_000, RollupMS: time.Hour.Milliseconds()}
	})
	before := g.memory()
	var rates, redis, used []float64
	began := time.Now()
	for ended := int64(0); ended == 0 || ended < int64(*manyJobs); {
		part := g.take(func() float64 {
			return perSecond(manyPart, func() {
				g.callers(32, manyPart, func() {
					_, err := g.submit(context.Background(), time.Hour, true)
					must(t, err)
				})
				ended += manyPart
				g.until(func() bool { return g.usable() >= ended })
			})
		})
		rates, redis, used = append(rates, part.PerSecond), append(redis, part.CPU.Redis), append(used, g.memory())
		t.Logf("%d ended: %.0f/s, Redis %.0f us a job, %.0f MiB", ended, part.PerSecond, part.CPU.Redis, g.memory())
	}
	some := max(1, len(rates)/5)
	first, last := median(rates[:some]), median(rates[len(rates)-some:])
	t.Logf("%d jobs in %v: %.0f/s in the first fifth, %.0f/s in the last; Redis %.0f and %.0f us a job", manyPart*len(rates), time.Since(began).Round(time.Second),
		first, last, median(redis[:some]), median(redis[len(rates)-some:]))
	if last < first/2 {
		t.Errorf("the rate fell from %.0f to %.0f a second", first, last)
	}
	time.Sleep(manyKeep + 10*time.Second)
	ttls, kinds := map[string]time.Duration{}, map[string]int{}
	name := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}|[0-9]{6,}`)
	for it := g.rdb.Scan(context.Background(), 0, "*", 10_000).Iterator(); it.Next(context.Background()); {
		ttl, err := g.rdb.PTTL(context.Background(), it.Val()).Result()
		must(t, err)
		ttls[it.Val()] = ttl
		kinds[name.ReplaceAllString(it.Val(), "*")]++
	}
	t.Logf("Redis: %.0f MiB before, %.0f at most, %.0f after retention; %d keys: %v", before, slices.Max(used), g.memory(), len(ttls), kinds)
	if kinds := slices.Sorted(maps.Keys(kinds)); len(kinds) > 60 {
		t.Errorf("%d kinds of keys: %v", len(kinds), kinds)
	}
	redistest.Remains(t, prefix, ttls, true)
}

// memory is what Redis has for data, in MiB.
func (g *gate) memory() (sum float64) {
	for _, r := range g.servers {
		info, err := r.Info(context.Background(), "memory").Result()
		must(g.t, err)
		_, rest, _ := strings.Cut(info, "used_memory:")
		n, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
		must(g.t, err)
		sum += n / (1 << 20)
	}
	return sum
}
