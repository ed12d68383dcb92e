package redisstore

import (
	"context"
	"encoding/json"
	"strings"

	"leeway/broker"
)

// News delivers the ids of jobs that a worker has claimed, or that gave their
// first answer text, until ctx is done. As with Ended, messages can be lost.
func (s *Store) News(ctx context.Context) (<-chan string, func() error) {
	return s.subscribe(ctx, "news", strings.Fields)
}

// Relay sends answer text to the API replica that asked for it. It is lost if
// nobody listens.
func (s *Store) Relay(ctx context.Context, replica string, p *broker.Piece) error {
	raw, err := json.Marshal(p)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.rdb.Publish(ctx, s.key("relay", replica), raw).Err(); err != nil {
		return unavailable(err)
	}
	return nil
}

// Relayed delivers the pieces that workers send to a replica, as JSON of a
// [broker.Piece] each, until ctx is done.
func (s *Store) Relayed(ctx context.Context, replica string) (<-chan string, func() error) {
	return s.subscribe(ctx, "relay:"+replica, func(piece string) []string { return []string{piece} })
}
