-- A worker lives. ARGV: pool, "<worker>|<slots>", ttl_ms. Those long forgotten are dropped.
never_refused()
local now = now_ms()
local key = P .. ':workers:' .. ARGV[1]
redis.call('ZREMRANGEBYSCORE', key, '-inf', int(now))
redis.call('ZADD', key, int(now + tonumber(ARGV[3])), ARGV[2])
return 1
