package broker

import "fmt"

// LayoutError means that the store holds what this program cannot work on.
// Nothing was read or written. It stays until another program runs, or another
// store is named.
type LayoutError struct {
	// Version is the newest layout that was written to the store, OpenTo the
	// oldest whose programs can work on it. Both are 0 where the store says
	// something else.
	Version, OpenTo int
	// Program is the layout that this program writes, Reads the oldest that it
	// carries on.
	Program, Reads int
}

// Error names both versions and what helps.
func (e *LayoutError) Error() string {
	switch {
	case e.Version == 0 && e.OpenTo == 0:
		return fmt.Sprintf("the key layout of the store is not a version that any program wrote; this program has layout %d", e.Program)
	case e.OpenTo > e.Program:
		return fmt.Sprintf("the store has layout %d, which is open to programs of layout %d and newer; this program has layout %d: run a newer one, or name another redis.prefix",
			e.Version, e.OpenTo, e.Program)
	}
	return fmt.Sprintf("the store has layout %d; this program has layout %d and carries on layouts %d and newer: let a program between the two run first",
		e.Version, e.Program, e.Reads)
}

// ShardsError means that the deployment of the store has another number of
// shards than this process. Nothing was written.
type ShardsError struct {
	// Stored is what was settled; 0 where that is no number.
	Stored int
}

// Error names the number and what helps.
func (e *ShardsError) Error() string {
	if e.Stored == 0 {
		return "the store does not say how many shards the deployment has: name another redis.prefix"
	}
	return fmt.Sprintf("the store holds a deployment with redis.shards: %d, which cannot change: name another redis.prefix for another number", e.Stored)
}
