package broker

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
