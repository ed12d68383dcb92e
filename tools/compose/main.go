// Command compose loads a compose file as docker compose does, schema check
// and interpolation included, and prints it as JSON. It is a module of its own
// so that what it is built from is not in the product's go.mod.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "compose:", err)
		os.Exit(1)
	}
}

func run(files []string, out io.Writer) error {
	o, err := cli.NewProjectOptions(files, cli.WithResolvedPaths(true), cli.WithProfiles([]string{"*"}))
	if err != nil {
		return err
	}
	p, err := o.LoadProject(context.Background())
	if err != nil {
		return err
	}
	raw, err := p.MarshalJSON()
	if err != nil {
		return err
	}
	_, err = out.Write(append(raw, '\n'))
	return err
}
