//go:build server

package redistest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A kill takes nothing that was acknowledged, whenever it comes between two
// syncs; a power cut takes what came after the last one, and nothing under
// "always".
func TestCutPower(t *testing.T) {
	ctx := context.Background()
	for _, tt := range []struct {
		fsync string
		end   func(s *Server) int64
		loses bool
	}{
		{"no", func(s *Server) int64 { s.Kill(); return 0 }, false},
		{"no", (*Server).CutPower, true},
		{"always", (*Server).CutPower, false},
	} {
		s := StartSynced(t, "--appendfsync", tt.fsync)
		ask := func(f func(rdb *redis.Client) error) {
			t.Helper()
			rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), DialTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second})
			defer func() { _ = rdb.Close() }()
			if err := f(rdb); err != nil {
				t.Fatal(err)
			}
		}
		const n = 50
		ask(func(rdb *redis.Client) error {
			for i := range n {
				if err := rdb.Set(ctx, fmt.Sprint("k", i), i, 0).Err(); err != nil {
					return err
				}
			}
			return nil
		})
		lost := tt.end(s)
		s.Run()
		var got int64
		ask(func(rdb *redis.Client) (err error) {
			got, err = rdb.DBSize(ctx).Result()
			return err
		})
		if (got < n) != tt.loses || (lost > 0) != tt.loses {
			t.Errorf("appendfsync %s: %d of %d keys left, %d bytes lost; loses: %v", tt.fsync, got, n, lost, tt.loses)
		}
		s.Kill()
	}
}
