package app

import (
	"context"
	"net/http"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/broker/config"
	"leeway/broker/store"
	"leeway/broker/ticket"
	"leeway/slackgate"
)

// DispatchPolls is for tests of the whole, as is what follows.
const DispatchPolls = dispatchPolls

// CanCall makes a caller of a backend, as a worker does.
func CanCall(b *config.Backend) error {
	_, err := NewClient(b, nil)
	return err
}

func (b *base) Redis() redis.UniversalClient                      { return b.rdb }
func (b *base) Store() store.Store                                { return b.store }
func (b *base) Tickets() *ticket.Queue                            { return b.shards[0].tickets }
func (b *base) PoolPolicy() [slackgate.NumPaths]broker.PoolPolicy { return b.poolPolicy() }
func (b *base) LookAtRisks(ctx context.Context) error             { return b.lookAtRisks(ctx) }
func (b *base) MetricsHandler() http.Handler                      { return b.metrics.Handler() }
