//go:build server

// Package e2e_test runs Leeway as it is deployed: the built binaries as
// processes of their own, a real redis-server, lab backends over TCP, and
// clients that know the API alone.
package e2e_test

import (
	"flag"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"leeway/rehearsal/proctest"
)

// bin is the folder with the binaries under test.
var bin string

var built = flag.String("built", "", "folder with api, worker and leeway; empty: they are built, with the race detector")

// atOnce is how many of the tests that may run beside others do. They wait for
// processes, for leases that lapse and for deadlines that pass, more than they
// compute: so there are more than there are cores.
const atOnce = "5"

// TestMain builds the binaries once, with the race detector, unless it is told
// where they are.
func TestMain(m *testing.M) {
	flag.Parse()
	told := false
	flag.Visit(func(f *flag.Flag) { told = told || f.Name == "test.parallel" })
	if !told {
		if err := flag.Set("test.parallel", atOnce); err != nil {
			panic(err)
		}
	}
	var err error
	if bin, err = filepath.Abs(*built); *built == "" {
		bin, err = proctest.Build("bin/e2e", []string{"-race"}, "api", "worker", "leeway")
	}
	if err != nil {
		panic(err)
	}
	m.Run()
	if chaosBalance != "" {
		fmt.Println(chaosBalance) //nolint:forbidigo // the last line of a chaos run, for the person who runs it
	}
}

// shipped builds the binaries as they are shipped, into a folder of bin.
var shipped = sync.OnceValues(func() (folder string, err error) {
	_, err = proctest.Build(filepath.Join(bin, "shipped"), nil, "api", "worker", "leeway")
	return "shipped", err
})
