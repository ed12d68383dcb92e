package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// The layout of what this program keeps in Redis: keys, fields of records and
// rows, messages and tickets. docs/decisions/0007-layouts.md says which changes
// need a new version.
const (
	// LayoutVersion is the version that this program writes.
	LayoutVersion = 2
	// layoutReads is the oldest version whose records this program carries to
	// their end.
	layoutReads = 1
	// layoutOpenTo is the oldest version whose programs can work on what this
	// one writes. It is at most LayoutVersion, and below it as long as the two
	// may run side by side.
	layoutOpenTo = 2
)

// layoutHead gives a script the versions.
func layoutHead(version, reads, openTo int) string {
	return fmt.Sprintf("local layout = { version = %d, reads = %d, open_to = %d }\n", version, reads, openTo)
}

// LayoutError means that the store holds what this program cannot work on.
// Nothing was read or written. It stays until another program runs, or another
// store is named.
type LayoutError struct {
	// Version is the newest layout that was written to the store, OpenTo the
	// oldest whose programs can work on it. Both are 0 where the store says
	// something else.
	Version, OpenTo int
}

// Error names both versions and what helps.
func (e *LayoutError) Error() string {
	switch {
	case e.Version == 0 && e.OpenTo == 0:
		return fmt.Sprintf("the key layout of the store is not a version that any program wrote; this program has layout %d", LayoutVersion)
	case e.OpenTo > LayoutVersion:
		return fmt.Sprintf("the store has layout %d, which is open to programs of layout %d and newer; this program has layout %d: run a newer one, or name another redis.prefix",
			e.Version, e.OpenTo, LayoutVersion)
	}
	return fmt.Sprintf("the store has layout %d; this program has layout %d and carries on layouts %d and newer: let a program between the two run first",
		e.Version, LayoutVersion, layoutReads)
}

// layoutErrorOf returns the LayoutError that a script's error stands for; nil
// if it is another.
func layoutErrorOf(err error) *LayoutError {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return nil
	}
	words := strings.Fields(reply.Error())
	if len(words) < 3 || words[0] != "LAYOUT" {
		return nil
	}
	e := &LayoutError{}
	e.Version, _ = strconv.Atoi(words[1]) // "?": 0
	e.OpenTo, _ = strconv.Atoi(words[2])
	return e
}

// Agree makes sure that this program can work on what the store holds, and
// returns the newest layout that was written there. A [*LayoutError]: it cannot.
// Every script checks this again; Agree is for a process that starts.
//
// shards is how many shards the deployment has that this store, by its prefix,
// is of. The first to say it settles it; a [*ShardsError] tells everybody who
// says something else. A store that is a shard has one.
func (s *Store) Agree(ctx context.Context, shards int) (version int, err error) {
	v, err := s.run(ctx, scriptAgree, shards)
	if err != nil {
		return 0, err
	}
	n, _ := v.(int64)
	return int(n), nil
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

// shardsErrorOf returns the ShardsError that a script's error stands for; nil
// if it is another.
func shardsErrorOf(err error) *ShardsError {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return nil
	}
	said, ok := strings.CutPrefix(reply.Error(), "SHARDS ")
	if !ok {
		return nil
	}
	said, _, _ = strings.Cut(said, " ") // Redis may say which script it was
	e := &ShardsError{}
	e.Stored, _ = strconv.Atoi(said)
	return e
}

// errHeld is why a store that is held runs no script.
var errHeld = errors.New("nobody has agreed with the store on the number of shards yet")

// Hold has every script refused until Release: a process that does not know
// whether it has the deployment's number of shards must do nothing to any.
func (s *Store) Hold() { s.held.Store(true) }

// Release ends a Hold.
func (s *Store) Release() { s.held.Store(false) }
