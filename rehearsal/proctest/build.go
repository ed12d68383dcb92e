package proctest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Root is the folder of go.mod.
func Root() (string, error) {
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	return filepath.Dir(strings.TrimSpace(string(mod))), err
}

// Build builds programs of the product into a folder and returns its path. The
// folder is one below the module's unless it is absolute; it stays, so that the
// next who asks, of whichever package, does not link again what has not changed.
// With the flag -race they have the race detector, else they are as shipped.
func Build(folder string, flags []string, programs ...string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	if !filepath.IsAbs(folder) {
		folder = filepath.Join(root, folder)
	}
	args := slices.Concat([]string{"build", "-buildvcs=false", "-o", folder + string(filepath.Separator)}, flags)
	for _, name := range programs {
		args = append(args, "./cmd/"+name)
	}
	cgo := "CGO_ENABLED=0"
	if slices.Contains(flags, "-race") {
		cgo = "CGO_ENABLED=1"
	}
	build := exec.Command("go", args...)
	build.Dir, build.Env = root, append(os.Environ(), cgo)
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return folder, nil
}
