package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"leeway/broker/reconcile"
)

// mendedVec counts what the reconciler has mended.
func mendedVec() *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "leeway_mended_total", Help: "What crashes and lost messages had left and the reconciler has mended, by what it was. Per process: sum.",
	}, []string{"what"})
	for _, what := range reconcile.Mendings {
		v.WithLabelValues(string(what))
	}
	return v
}

// Mended counts what the reconciler has mended.
func (m *Metrics) Mended(what reconcile.Mending, n int64) {
	m.mended.WithLabelValues(string(what)).Add(float64(n))
}
