-- A worker process shows its backends' states. ARGV: worker, states, ttl_ms. Those long silent are dropped.
local now, ttl = now_ms(), tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', P .. ':fleet', '-inf', int(now))
redis.call('ZADD', P .. ':fleet', int(now + ttl), ARGV[1])
redis.call('SET', P .. ':fleet:' .. ARGV[1], ARGV[2], 'PX', ARGV[3])
return 1
