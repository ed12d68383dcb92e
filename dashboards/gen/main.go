// Command gen writes the generated dashboards and alerts into the folder
// dashboards/, which it is run from.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"leeway/dashboards"
)

func main() { os.Exit(run()) } //nolint:forbidigo // a main like those in cmd

func run() int {
	runbooks := flag.String("runbooks", dashboards.RunbooksURL, "address that the links to the alerts' pages begin with")
	flag.Parse()
	files, err := dashboards.Files(*runbooks)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for name, raw := range files {
		if err := os.WriteFile(filepath.FromSlash(name), raw, 0o644); err != nil { //nolint:gosec // for everybody to read
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return 0
}
