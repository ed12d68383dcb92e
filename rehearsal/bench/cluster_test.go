//go:build bench

package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"leeway/broker/admission"
	"leeway/broker/shard"
	"leeway/rehearsal/redistest"
)

// onShards: one deployment of three shards on as many masters against one of one
// shard on one Redis. Each job goes to the better of two shards.
func onShards(t *testing.T, r *Report) {
	const masters, callers = 3, 128
	cluster := redistest.StartCluster(t, masters)
	sharded := func(slots int, holdMS int64) (first *gate, submit func(ctx context.Context, deadline time.Duration, admitted bool) (int, error)) {
		var gates []*gate
		var admitters []*admission.Admitter
		for _, name := range shard.Prefixes(prefix, masters) {
			g := newGateOn(t, cluster.URL(), name, slots, holdMS, cluster.Masters...)
			gates, admitters = append(gates, g), append(admitters, g.adm)
		}
		gates[0].beside = gates[1:]
		all := shard.NewAdmitter(func(string, string) (string, bool) { return "", false }, admitters...)
		return gates[0], func(ctx context.Context, deadline time.Duration, admitted bool) (int, error) {
			v, err := all.Submit(ctx, job(deadline))
			if err == nil && v.Admitted() != admitted {
				t.Errorf("verdict %+v", v)
			}
			return 1, err
		}
	}
	one := newGate(t, 1000, 10)
	three, submit := sharded(334, 10)
	r.Measures = append(r.Measures, note(against("admissions, three shards on three masters / one Redis, 128 callers",
		one, func() float64 {
			return rate(t, callers, func(ctx context.Context, _ int) (int, error) { return one.submit(ctx, longDeadline, true) })
		},
		three, func() float64 {
			return rate(t, callers, func(ctx context.Context, _ int) (int, error) { return submit(ctx, longDeadline, true) })
		}), "one deployment, the better of two, the same cores"))
	full := newGate(t, 2, 1200)
	fulls, refused := sharded(2, 1200)
	r.Measures = append(r.Measures, note(against("rejects, three shards on three masters / one Redis, 128 callers",
		full, func() float64 {
			full.fill(time.Minute)
			return rate(t, callers, func(ctx context.Context, _ int) (int, error) { return full.submit(ctx, 30*time.Second, false) })
		},
		fulls, func() float64 {
			for _, g := range append([]*gate{fulls}, fulls.beside...) {
				g.fill(time.Minute)
			}
			return rate(t, callers, func(ctx context.Context, _ int) (int, error) { return refused(ctx, 30*time.Second, false) })
		}), "the same"))
}

// onCluster: three deployments, each on a master of its own, against one
// deployment on one Redis. On as many cores as one machine has this says what a
// Cluster costs; what it gains shows where each master has a core of its own.
func onCluster(t *testing.T, r *Report) {
	const masters, callers = 3, 128
	cluster := redistest.StartCluster(t, masters)
	held := map[*redistest.Server]bool{}
	gates := func(slots int, holdMS int64) (all []*gate) {
		clear(held)
		for i := 0; len(all) < masters; i++ {
			name := fmt.Sprintf("%s%d", prefix, i)
			if at := cluster.Holder(t, "{"+name+"}"); !held[at] {
				held[at] = true
				all = append(all, newGateOn(t, cluster.URL(), name, slots, holdMS, cluster.Masters...))
			}
		}
		all[0].beside = all[1:]
		return all
	}
	one, three := newGate(t, 1000, 10), gates(334, 10)
	r.Measures = append(r.Measures, note(against("admissions, three masters / one Redis, 128 callers",
		one, func() float64 {
			return rate(t, callers, func(ctx context.Context, _ int) (int, error) { return one.submit(ctx, longDeadline, true) })
		},
		three[0], func() float64 {
			return rate(t, callers, func(ctx context.Context, i int) (int, error) {
				return three[i%masters].submit(ctx, longDeadline, true)
			})
		}), "three deployments, one process, the same cores"))
	full, fulls := newGate(t, 2, 1200), gates(2, 1200)
	r.Measures = append(r.Measures, note(against("rejects, three masters / one Redis, 128 callers",
		full, func() float64 {
			full.fill(time.Minute)
			return rate(t, callers, func(ctx context.Context, _ int) (int, error) { return full.submit(ctx, 30*time.Second, false) })
		},
		fulls[0], func() float64 {
			for _, g := range fulls {
				g.fill(time.Minute)
			}
			return rate(t, callers, func(ctx context.Context, i int) (int, error) {
				return fulls[i%masters].submit(ctx, 30*time.Second, false)
			})
		}), "the same"))
	onShards(t, r)
}
