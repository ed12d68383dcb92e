package redisstore

import (
	"context"
	"strings"

	"leeway/broker"
)

// Durability asks the server for its settings.
func (s *Store) Durability(ctx context.Context) (*broker.Durability, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	d := &broker.Durability{}
	node, err := s.node(ctx)
	if err != nil {
		return nil, err
	}
	// One section a call: servers before 7 take no more.
	for _, section := range []string{"memory", "persistence", "replication"} {
		raw, err := node.Info(ctx, section).Result()
		if err != nil {
			return nil, unavailable(err)
		}
		for line := range strings.Lines(raw) {
			field, v, _ := strings.Cut(strings.TrimSpace(line), ":")
			switch field {
			case "maxmemory_policy":
				d.EvictionPolicy = v
			case "aof_enabled":
				d.AppendOnly = v == "1"
			case "role":
				d.Replica = v == "slave"
			}
		}
	}
	return d, nil
}
