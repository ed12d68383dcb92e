//go:build server

package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"leeway/rehearsal/redistest"
)

// syncedLog is the file in a server's folder that notes what is on disk.
const syncedLog = "synced.log"

// startSynced is [redistest.Start] of a server whose power can be cut: it notes
// how much of its files each sync has brought to disk. It needs a C compiler.
func startSynced(tb testing.TB, args ...string) *redistest.Server {
	tb.Helper()
	preload := filepath.Join(tb.TempDir(), "synced.so")
	if out, err := exec.Command("cc", "-O2", "-shared", "-fPIC", "-o", preload, "testdata/synced.c").CombinedOutput(); err != nil {
		tb.Fatalf("a C compiler is needed (make setup installs it): %v\n%s", err, out)
	}
	return redistest.StartIn(tb, []string{"LD_PRELOAD=" + preload, "SYNCED_LOG=" + syncedLog}, args...)
}

// cutPower ends the process and takes from its files whatever no sync had
// brought to disk: what a power cut may leave at worst. A kill alone takes
// nothing that was written, since the kernel has it. It returns how many bytes
// were lost.
func cutPower(tb testing.TB, s *redistest.Server) (lost int64) {
	tb.Helper()
	s.Kill()
	synced := onDisk(tb, s)
	files, err := filepath.Glob(filepath.Join(s.Dir, "appendonlydir", "*"))
	if err != nil || len(files) < 2 {
		tb.Fatalf("AOF files %v, %v", files, err)
	}
	for _, name := range files {
		info, err := os.Stat(name)
		if err != nil {
			tb.Fatal(err)
		}
		size := synced[info.Sys().(*syscall.Stat_t).Ino]
		if over := info.Size() - size; over > 0 {
			lost += over
			if err := os.Truncate(name, size); err != nil {
				tb.Fatal(err)
			}
		}
	}
	return lost
}

// onDisk is how much of each file is on disk, by inode.
func onDisk(tb testing.TB, s *redistest.Server) map[uint64]int64 {
	tb.Helper()
	f, err := os.Open(filepath.Join(s.Dir, syncedLog))
	if err != nil {
		tb.Fatalf("no sync was noted: %v", err)
	}
	defer func() { _ = f.Close() }()
	out := map[uint64]int64{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var inode uint64
		var size int64
		if _, err := fmt.Sscan(lines.Text(), &inode, &size); err != nil {
			tb.Fatalf("%q: %v", lines.Text(), err)
		}
		out[inode] = max(out[inode], size)
	}
	return out
}

// A kill takes nothing that was acknowledged, whenever it comes between two
// syncs; a power cut takes what came after the last one, and nothing under
// "always".
func TestCutPower(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, tt := range []struct {
		fsync string
		end   func(tb testing.TB, s *redistest.Server) int64
		loses bool
	}{
		{"no", func(_ testing.TB, s *redistest.Server) int64 { s.Kill(); return 0 }, false},
		{"no", cutPower, true},
		{"always", cutPower, false},
	} {
		s := startSynced(t, "--appendfsync", tt.fsync)
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
		lost := tt.end(t, s)
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
