package redistest

import (
	"bufio"
	_ "embed" // the source of what is preloaded
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

//go:embed testdata/synced.c
var syncedSource []byte

// StartSynced is [Start] of a server whose power can be cut: it notes how much
// of its files each sync has brought to disk. It needs a C compiler.
func StartSynced(tb testing.TB, args ...string) *Server {
	tb.Helper()
	dir := tb.TempDir()
	source, preload := filepath.Join(dir, "synced.c"), filepath.Join(dir, "synced.so")
	if err := os.WriteFile(source, syncedSource, 0o600); err != nil {
		tb.Fatal(err)
	}
	if out, err := exec.CommandContext(tb.Context(), "cc", "-O2", "-shared", "-fPIC", "-o", preload, source).CombinedOutput(); err != nil {
		tb.Fatalf("a C compiler is needed (make setup installs it): %v\n%s", err, out)
	}
	return start(tb, &Server{synced: filepath.Join(dir, "synced.log"), preload: preload}, args)
}

// CutPower ends the process and takes from its files whatever no sync had
// brought to disk: what a power cut may leave at worst. A kill alone takes
// nothing that was written, since the kernel has it. It returns how many bytes
// were lost.
func (s *Server) CutPower() (lost int64) {
	s.t.Helper()
	if s.synced == "" {
		s.t.Fatal("the server was not started by StartSynced")
	}
	s.Kill()
	onDisk := s.onDisk()
	files, err := filepath.Glob(filepath.Join(s.dir, "appendonlydir", "*"))
	if err != nil || len(files) < 2 {
		s.t.Fatalf("AOF files %v, %v", files, err)
	}
	for _, name := range files {
		info, err := os.Stat(name)
		if err != nil {
			s.t.Fatal(err)
		}
		size := onDisk[info.Sys().(*syscall.Stat_t).Ino]
		if over := info.Size() - size; over > 0 {
			lost += over
			if err := os.Truncate(name, size); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	return lost
}

// onDisk is how much of each file is on disk, by inode.
func (s *Server) onDisk() map[uint64]int64 {
	s.t.Helper()
	f, err := os.Open(s.synced)
	if err != nil {
		s.t.Fatalf("no sync was noted: %v", err)
	}
	defer func() { _ = f.Close() }()
	out := map[uint64]int64{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var inode uint64
		var size int64
		if _, err := fmt.Sscan(lines.Text(), &inode, &size); err != nil {
			s.t.Fatalf("%q: %v", lines.Text(), err)
		}
		out[inode] = max(out[inode], size)
	}
	return out
}
