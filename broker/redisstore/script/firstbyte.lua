-- A claimed job's first answer text came. ARGV: pool, id, fence.
local pool, id, fence = ARGV[1], ARGV[2], ARGV[3]
if redis.call('HGET', P .. ':job:' .. id, 'fence') ~= fence then return 0 end
redis.call('ZREM', P .. ':silent:' .. pool, id)
redis.call('HSET', P .. ':job:' .. id, 'first_byte_at', int(now_ms()))
redis.call('PUBLISH', P .. ':news', id)
return 1
