// Package storetest gives tests a real store, so that none of them has to know
// which one that is.
package storetest

import (
	"context"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
	"leeway/broker/flag"
	"leeway/broker/redisstore"
	"leeway/broker/store"
	"leeway/slackgate"
)

// LayoutVersion is the layout that the store writes.
const LayoutVersion = redisstore.LayoutVersion

// Options configure a store.
type Options = redisstore.Options

// New returns a store over a client.
func New(rdb redis.UniversalClient, o Options) store.Shard { return redisstore.New(rdb, o) }

// Client connects to a URL as a process does; Dial through a function, for a
// server in this process.
func Client(url string, timeout time.Duration) (redis.UniversalClient, error) {
	return redisstore.Client(url, timeout)
}

// Dial returns a client whose connections come from a function.
func Dial(dial func(ctx context.Context, network, addr string) (net.Conn, error)) redis.UniversalClient {
	return redisstore.DialClient(dial)
}

// Admit offers jobs at once, with flags that nobody has set.
func Admit(ctx context.Context, s store.Gate, policy [slackgate.NumPaths]broker.PoolPolicy, offers ...broker.Offer) (broker.OfferResults, error) {
	return s.AdmitInTurn(ctx, flag.NewTable(0, nil), policy, offers, func() error { return nil })
}
