package redisstore

import (
	"context"
	"net"
	"net/url"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"leeway/broker"
)

// Client connects to Redis the way the store needs it: every call ends within
// timeout, and a command whose reply was lost is not sent again behind the
// caller's back.
//
// What the URL (redis:// or rediss:// for TLS, with user, password and the
// number of the database, or unix://) leads to is told by its parameters, as
// go-redis reads them: a Cluster with addr=host:port for each further node, a
// Sentinel set with master_name=NAME (user and password are then the
// Sentinels'; the server's are the parameters username and password), or else
// one server.
func Client(rawURL string, timeout time.Duration) (redis.UniversalClient, error) {
	o, err := universal(rawURL)
	if err != nil {
		return nil, broker.Fieldf("redis.url", "not a Redis URL") // the URL may hold a password
	}
	o.MaxRetries = -1
	o.DialerRetries = 1
	o.DialTimeout = timeout
	o.ReadTimeout = timeout
	o.WriteTimeout = timeout
	o.PoolTimeout = timeout
	o.ContextTimeoutEnabled = true
	o.DisableIdentity = true
	o.MaintNotificationsConfig = noMaintenance
	return redis.NewUniversalClient(o), nil
}

func universal(rawURL string) (*redis.UniversalOptions, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	switch q := u.Query(); {
	case q.Has("master_name"):
		o, err := redis.ParseFailoverURL(rawURL)
		if err != nil {
			return nil, err
		}
		return &redis.UniversalOptions{
			MasterName: o.MasterName, Addrs: o.SentinelAddrs, DB: o.DB, TLSConfig: o.TLSConfig,
			SentinelUsername: o.SentinelUsername, SentinelPassword: o.SentinelPassword, Username: o.Username, Password: o.Password,
			Protocol: o.Protocol, PoolSize: o.PoolSize, MinIdleConns: o.MinIdleConns,
			ConnMaxIdleTime: o.ConnMaxIdleTime, ConnMaxLifetime: o.ConnMaxLifetime,
		}, nil
	case q.Has("addr"):
		o, err := redis.ParseClusterURL(rawURL)
		if err != nil {
			return nil, err
		}
		return &redis.UniversalOptions{
			IsClusterMode: true, Addrs: o.Addrs, TLSConfig: o.TLSConfig, Username: o.Username, Password: o.Password,
			Protocol: o.Protocol, PoolSize: o.PoolSize, MinIdleConns: o.MinIdleConns,
			ConnMaxIdleTime: o.ConnMaxIdleTime, ConnMaxLifetime: o.ConnMaxLifetime,
		}, nil
	default:
		o, err := redis.ParseURL(rawURL)
		if err != nil {
			return nil, err
		}
		return &redis.UniversalOptions{
			Addrs: []string{o.Addr}, DB: o.DB, TLSConfig: o.TLSConfig, Username: o.Username, Password: o.Password,
			Protocol: o.Protocol, PoolSize: o.PoolSize, MinIdleConns: o.MinIdleConns,
			ConnMaxIdleTime: o.ConnMaxIdleTime, ConnMaxLifetime: o.ConnMaxLifetime,
		}, nil
	}
}

// DialClient is a client over a dial function, for an embedded store or a
// virtual-time test: no deadline reaches the connection itself.
func DialClient(dial func(ctx context.Context, network, addr string) (net.Conn, error)) redis.UniversalClient {
	return redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:0", Dialer: dial,
		MaxRetries: -1, DialerRetries: 1, ReadTimeout: -1, WriteTimeout: -1,
		ContextTimeoutEnabled: true, DisableIdentity: true,
		PoolSize: 64, MaintNotificationsConfig: noMaintenance,
	})
}

// noMaintenance leaves out what managed Redis services announce of their
// maintenance: it costs a handshake, and a name look-up, for every connection.
var noMaintenance = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
