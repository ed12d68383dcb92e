package workers

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"leeway/broker"
	"leeway/broker/metrics"
)

// TestStatesAreShown holds that every state a backend can be in has its series
// on the metrics page.
func TestStatesAreShown(t *testing.T) {
	for _, s := range broker.BackendStates {
		m := metrics.New()
		m.Backends(func() []broker.BackendState { return []broker.BackendState{{Backend: "lab", State: s}} })
		rec := httptest.NewRecorder()
		m.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
		want := fmt.Sprintf("leeway_backend_state{backend=\"lab\",state=%q} 1\n", s)
		if !bytes.Contains(rec.Body.Bytes(), []byte(want)) {
			t.Errorf("no %s", want)
		}
	}
}
