package redistest

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"leeway/rehearsal/proctest"
)

// Cluster is a Redis Cluster of masters without replicas, each a process.
type Cluster struct {
	Masters []*Server
}

// slots is how many a Cluster has.
const slots = 16384

// StartCluster runs a Cluster of that many masters, and stops it with the test.
// It returns once each of them says that all slots are served.
func StartCluster(tb testing.TB, masters int) *Cluster {
	tb.Helper()
	c := &Cluster{}
	buses := make([]int, masters)
	for i := range masters {
		buses[i] = proctest.FreePort(tb)
		c.Masters = append(c.Masters, Start(tb, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(buses[i]),
			"--cluster-node-timeout", "5000"))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	clients := make([]*redis.Client, masters)
	for i, s := range c.Masters {
		clients[i] = redis.NewClient(&redis.Options{Addr: s.Addr()})
		defer func() { _ = clients[i].Close() }()
		first, next := i*slots/masters, (i+1)*slots/masters
		err := errors.Join(
			clients[i].Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(),
			clients[i].ClusterAddSlotsRange(ctx, first, next-1).Err())
		if i > 0 {
			err = errors.Join(err, clients[0].Do(ctx, "CLUSTER", "MEET", "127.0.0.1", s.port, buses[i]).Err())
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	for _, r := range clients {
		proctest.Eventually(tb, 30*time.Second, "the cluster is ready", func() error {
			info, err := r.ClusterInfo(ctx).Result()
			if err == nil && (!strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_known_nodes:"+strconv.Itoa(masters))) {
				err = errors.New(info)
			}
			return err
		})
	}
	return c
}

// URL is the address as configuration takes it: one node, and the others as
// parameters.
func (c *Cluster) URL() string {
	var rest []string
	for _, s := range c.Masters[1:] {
		rest = append(rest, "addr="+s.Addr())
	}
	return "redis://" + c.Masters[0].Addr() + "?" + strings.Join(rest, "&")
}

// Holder is the master that holds a key.
func (c *Cluster) Holder(tb testing.TB, key string) *Server {
	tb.Helper()
	r := redis.NewClient(&redis.Options{Addr: c.Masters[0].Addr()})
	defer func() { _ = r.Close() }()
	slot, err := r.ClusterKeySlot(context.Background(), key).Result()
	if err != nil {
		tb.Fatal(err)
	}
	for i, next := range c.Masters {
		if slot < int64((i+1)*slots/len(c.Masters)) {
			return next
		}
	}
	tb.Fatalf("nobody holds slot %d", slot)
	return nil
}
