package redisstore

import (
	"context"
	"time"

	"leeway/slackgate"
)

// Budgets fills in what of each budget is spent today and reserved, read at one
// instant, which it returns. Keys are those of [ledger.ClassField] and
// [ledger.ProducerField].
func (s *Store) Budgets(ctx context.Context, budgets map[string]*slackgate.Budget) (nowMS int64, err error) {
	fields := make([]any, 0, len(budgets))
	for f := range budgets {
		fields = append(fields, f)
	}
	sent := time.Now()
	v, err := s.run(ctx, scriptBudgets, fields...)
	if err != nil {
		return 0, err
	}
	r := asReply(v)
	nowMS = r.int()
	for _, f := range fields {
		b := budgets[f.(string)] //nolint:forcetypeassert // put there above
		b.SpentMicro, b.ReservedMicro = r.int(), r.int()
	}
	if r.err != nil {
		return 0, r.err
	}
	s.saw(sent, nowMS)
	return nowMS, nil
}
