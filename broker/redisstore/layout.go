package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
)

// The layout of what this program keeps in Redis: keys, fields of records and
// rows, messages and tickets. docs/decisions/0007-layouts.md says which changes
// need a new version.
const (
	// LayoutVersion is the version that this program writes.
	LayoutVersion = 3
	// layoutReads is the oldest version whose records this program carries to
	// their end.
	layoutReads = 2
	// layoutOpenTo is the oldest version whose programs can work on what this
	// one writes. It is at most LayoutVersion, and below it as long as the two
	// may run side by side.
	layoutOpenTo = 3
)

// layoutHead gives a script the versions.
func layoutHead(version, reads, openTo int) string {
	return fmt.Sprintf("local layout = { version = %d, reads = %d, open_to = %d }\n", version, reads, openTo)
}

// layoutErrorOf returns the LayoutError that a script's error stands for; nil
// if it is another.
func layoutErrorOf(err error) *broker.LayoutError {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return nil
	}
	words := strings.Fields(reply.Error())
	if len(words) < 3 || words[0] != "LAYOUT" {
		return nil
	}
	e := &broker.LayoutError{Program: LayoutVersion, Reads: layoutReads}
	e.Version, _ = strconv.Atoi(words[1]) // "?": 0
	e.OpenTo, _ = strconv.Atoi(words[2])
	return e
}

// Agree makes sure that this program can work on what the store holds, and
// returns the newest layout that was written there. A [*broker.LayoutError]: it cannot.
// Every script checks this again; Agree is for a process that starts.
//
// shards is how many shards the deployment has that this store, by its prefix,
// is of. The first to say it settles it; a [*broker.ShardsError] tells everybody who
// says something else. A store that is a shard has one.
func (s *Store) Agree(ctx context.Context, shards int) (version int, err error) {
	v, err := s.run(ctx, scriptAgree, shards)
	if err != nil {
		return 0, err
	}
	n, _ := v.(int64)
	return int(n), nil
}

// shardsErrorOf returns the ShardsError that a script's error stands for; nil
// if it is another.
func shardsErrorOf(err error) *broker.ShardsError {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return nil
	}
	said, ok := strings.CutPrefix(reply.Error(), "SHARDS ")
	if !ok {
		return nil
	}
	said, _, _ = strings.Cut(said, " ") // Redis may say which script it was
	e := &broker.ShardsError{}
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
