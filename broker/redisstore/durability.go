package redisstore

import (
	"context"
	"strings"
)

// Durability is what the store's own settings put at risk.
type Durability struct {
	// EvictionPolicy is maxmemory-policy. Anything but "noeviction" lets a full
	// Redis drop jobs and ledger rows.
	EvictionPolicy string
	// AppendOnly reports whether the append-only file is on. Without it a
	// restart forgets what was acknowledged since the last snapshot.
	AppendOnly bool
	// Replica reports that the server is read-only for us.
	Replica bool
}

// Risks says in plain words what is at risk, most serious first; empty when
// nothing is.
func (d *Durability) Risks() []string {
	var risks []string
	if d.EvictionPolicy != "noeviction" {
		risks = append(risks, "maxmemory-policy is "+d.EvictionPolicy+
			": a full Redis drops promised jobs and ledger rows without a word; set noeviction")
	}
	if !d.AppendOnly {
		risks = append(risks, "appendonly is off: a restart of Redis loses jobs that were acknowledged and rows that were booked; set appendonly yes")
	}
	if d.Replica {
		risks = append(risks, "the server is a replica: nothing can be admitted there; point redis.url at the master")
	}
	return risks
}

// Durability asks the server for its settings.
func (s *Store) Durability(ctx context.Context) (*Durability, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	d := &Durability{}
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
