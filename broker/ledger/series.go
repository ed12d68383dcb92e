package ledger

import (
	"fmt"
	"strings"

	"leeway/broker"
)

// Series are the ledger metrics that totals make, by their names with labels as
// a metrics page writes them.
func Series(t broker.Totals) map[string]int64 {
	out := map[string]int64{}
	for name, n := range t {
		p := strings.Split(name, ":")
		switch {
		case p[0] == "miss" && len(p) == 2:
			out[fmt.Sprintf("job_deadline_miss_total{path=%q}", p[1])] = n
		case p[0] == "miss_cause" && len(p) == 3 && p[1] != "reject":
			out[fmt.Sprintf("job_deadline_miss_cause_total{cause=%q,path=%q}", p[2], p[1])] = n
		case p[0] == "spend_tokens" && len(p) == 2:
			out[fmt.Sprintf("job_token_spend_total{path=%q}", p[1])] = n
		case p[0] == "tokens" && len(p) == 3:
			out[fmt.Sprintf("job_tokens_total{kind=%q,path=%q}", p[2], p[1])] = n
		case p[0] == "cost_micro" && len(p) == 3:
			out[fmt.Sprintf("job_cost_micro_total{currency=%q,path=%q}", p[2], p[1])] = n
		case p[0] == "known" && len(p) == 3:
			out[fmt.Sprintf("job_attempt_total{known=%q,path=%q}", p[2], p[1])] = n
		case p[0] == "outcome" && len(p) == 3:
			out[fmt.Sprintf("job_outcome_total{outcome=%q,path=%q}", p[2], p[1])] = n
		case p[0] == "cost_difference" && len(p) == 2:
			out[fmt.Sprintf("job_cost_difference_total{backend=%q}", p[1])] = n
		}
	}
	return out
}
