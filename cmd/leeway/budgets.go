package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

type budgetsCmd struct{ apiFlags }

// Run prints the budgets that the key may see.
func (c *budgetsCmd) Run(ctx context.Context, out io.Writer) error {
	a, err := c.client().Budgets(ctx)
	if err != nil {
		return err
	}
	if len(a.Budgets) == 0 {
		_, err := fmt.Fprintln(out, "no budgets: set budget_micro_per_day under producers or classes")
		return err
	}
	fmt.Fprintf(out, "%s (UTC), the next day begins in %v; micro-units of %s\n",
		a.Day, (time.Duration(a.ResetsAtMS-a.NowMS) * time.Millisecond).Round(time.Second), a.Currency)
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "SCOPE\tNAME\tBUDGET\tSPENT\tRESERVED\tLEFT\t")
	for _, b := range a.Budgets {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t\n", b.Scope, b.Name, b.BudgetMicroPerDay, b.SpentMicro, b.ReservedMicro, b.LeftMicro)
	}
	return w.Flush()
}
