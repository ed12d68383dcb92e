//go:build server

package app_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"leeway/broker/config"
	"leeway/broker/store/storetest"
	"leeway/cmd/app"
	"leeway/rehearsal/proctest"
	"leeway/rehearsal/redistest"
)

// Redis's settings can be changed while it runs: /readyz, the metrics that the
// notice reads and the log say what is at risk, and when it no longer is.
func TestSettingsOfRedisChange(t *testing.T) {
	cfg := config.Default()
	cfg.Redis.URL = redistest.Start(t).URL()
	cfg.Listen, cfg.MetricsListen = "127.0.0.1:0", "127.0.0.1:0"
	must(t, cfg.Complete())
	log := &logs{}
	api, err := app.StartAPI(app.Options{Config: cfg, Log: app.Logger(log, slog.LevelInfo)})
	must(t, err)
	defer func() { must(t, api.Stop(context.Background())) }()
	rdb, err := storetest.Client(cfg.Redis.URL, 5*time.Second)
	must(t, err)
	defer func() { must(t, rdb.Close()) }()
	for _, tt := range []struct{ policy, ready, safe, logged string }{
		{"noeviction", `"store":"ok"`, "leeway_store_safe 1", ""},
		{"allkeys-lru", `"store":"maxmemory-policy is allkeys-lru: `, "leeway_store_safe 0", "redis is not safe to promise on"},
		{"noeviction", `"store":"ok"`, "leeway_store_safe 1", "redis is safe to promise on"},
	} {
		must(t, rdb.ConfigSet(t.Context(), "maxmemory-policy", tt.policy).Err())
		must(t, api.LookAtRisks(t.Context()))
		// What one caller was told is told to others for a moment.
		proctest.Eventually(t, 10*time.Second, tt.policy, func() error {
			if got := page(t, api.Addr(), "/readyz"); !strings.Contains(got, tt.ready) {
				return fmt.Errorf("/readyz says %s", got)
			}
			return nil
		})
		if got := page(t, api.MetricsAddr(), "/metrics"); !strings.Contains(got, "\n"+tt.safe+"\n") {
			t.Errorf("%s: no %s", tt.policy, tt.safe)
		}
		log.mu.Lock()
		if said := log.buf.String(); !strings.Contains(said, tt.logged) {
			t.Errorf("%s: the log says %s", tt.policy, said)
		}
		log.mu.Unlock()
	}
}

func page(t *testing.T, addr, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, http.NoBody)
	must(t, err)
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	return string(b)
}
