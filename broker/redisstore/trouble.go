package redisstore

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/redis/go-redis/v9"

	"leeway/broker"
)

// unavailable wraps whatever Redis or the network said, so that callers need
// to know one sentinel only, and names what it is about.
func unavailable(err error) error {
	trouble := troubleOf(err)
	if layout := layoutErrorOf(err); layout != nil {
		trouble, err = broker.TroubleLayout, layout
	}
	if shards := shardsErrorOf(err); shards != nil {
		err = shards
	}
	return &broker.StoreError{Trouble: trouble, Err: err}
}

func troubleOf(err error) broker.Trouble {
	var timeout net.Error
	switch {
	case redis.IsOOMError(err):
		return broker.TroubleFull
	case redis.IsReadOnlyError(err):
		return broker.TroubleReadOnly
	case redis.IsNoReplicasError(err):
		return broker.TroubleNoReplicas
	case redis.IsLoadingError(err):
		return broker.TroubleLoading
	case redis.HasErrorPrefix(err, "MISCONF"):
		return broker.TroubleNoDisk
	case redis.IsAuthError(err), redis.IsPermissionError(err):
		return broker.TroubleNoAccess
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, redis.ErrPoolTimeout):
		return broker.TroubleNoAnswer
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.ErrClosedPipe), errors.Is(err, net.ErrClosed),
		errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		redis.IsMaxClientsError(err), redis.IsMasterDownError(err), redis.IsClusterDownError(err):
		return broker.TroubleNoConnection
	case errors.As(err, &timeout):
		if timeout.Timeout() {
			return broker.TroubleNoAnswer
		}
		return broker.TroubleNoConnection
	}
	return broker.TroubleOther
}
