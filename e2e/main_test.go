//go:build server

// Package e2e_test runs Leeway as it is deployed: the built binaries as
// processes of their own, a real redis-server, lab backends over TCP, and
// clients that know the API alone.
package e2e_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// bin is the folder with the binaries under test.
var bin string

var built = flag.String("built", "", "folder with api, worker and leeway; empty: they are built, with the race detector")

// TestMain builds the binaries once, with the race detector, unless it is told
// where they are.
func TestMain(m *testing.M) {
	flag.Parse()
	if *built != "" {
		bin = *built
		runAll(m)
		return
	}
	dir, err := os.MkdirTemp("", "leeway-e2e-")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	bin = dir
	build := exec.Command("go", "build", "-race", "-o", bin+string(filepath.Separator), "./cmd/api", "./cmd/worker", "./cmd/leeway")
	build.Dir = ".."
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		_ = os.RemoveAll(dir)
		panic(fmt.Sprintf("go build: %v\n%s", err, out))
	}
	runAll(m)
}

func runAll(m *testing.M) {
	m.Run()
	if chaosBalance != "" {
		fmt.Println(chaosBalance) //nolint:forbidigo // the last line of a chaos run, for the person who runs it
	}
}
