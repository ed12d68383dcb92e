package app

import (
	"context"
	"errors"
	"time"

	"leeway/broker"
	"leeway/broker/background"
	"leeway/broker/redisstore"
)

// layoutAgain is how long a process that could not ask its store at the start
// waits before it asks again.
const layoutAgain = time.Second

// agreeOnLayout fails where the store holds what this program cannot work on, or
// a deployment of another number of shards: such a process had better not start.
// Where the store does not answer, the process starts, as it does with the store
// away, and a loop goes on asking. In between every script refuses by itself.
func (b *base) agreeOnLayout() error {
	agreed, err := b.agree(context.Background())
	if !agreed && err == nil {
		b.background.Go("layout", b.agreeLater)
	}
	return err
}

func (b *base) agreeLater(ctx context.Context) error {
	for {
		if err := background.Sleep(ctx, layoutAgain); err != nil {
			return err
		}
		if agreed, err := b.agree(ctx); agreed || err != nil {
			return err
		}
	}
}

// agree asks the store once. It is false without an error where the store does
// not answer.
func (b *base) agree(ctx context.Context) (bool, error) {
	version, err := b.askShards(ctx)
	if layout, ok := errors.AsType[*broker.LayoutError](err); ok {
		return false, layout
	}
	if shards, ok := errors.AsType[*broker.ShardsError](err); ok {
		return false, broker.Fieldf("redis.shards", "is %d here: %v", len(b.shards), shards)
	}
	if err != nil {
		return false, nil //nolint:nilerr // it is asked again
	}
	b.sayLayout(version)
	return true, nil
}

// askShards asks under the deployment's own prefix how many shards there are to
// be, and then every one of them whether its keys can be worked on.
func (b *base) askShards(ctx context.Context) (version int, err error) {
	n := len(b.shards)
	if n == 1 {
		return b.shards[0].store.Agree(ctx, 1)
	}
	cfg := b.config()
	own := redisstore.New(b.rdb, redisstore.Options{Prefix: cfg.Redis.Prefix, Timeout: cfg.RedisTimeout()})
	if version, err = own.Agree(ctx, n); err != nil {
		return 0, err
	}
	for _, p := range b.shards {
		p.store.Release()
		v, err := p.store.Agree(ctx, 1)
		if err != nil {
			return 0, err
		}
		version = max(version, v)
	}
	return version, nil
}

// sayLayout tells when another version has run here: an upgrade is under way, or
// was taken back.
func (b *base) sayLayout(version int) {
	if version != redisstore.LayoutVersion {
		b.log.Info("the store has a newer layout that is open to this program", "layout", version, "layout_of_this_program", redisstore.LayoutVersion)
	}
}
