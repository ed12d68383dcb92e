-- Prolong a lease. ARGV: pool, id, fence, lease_ms.
-- Returns 0: not yours any more, 1: yours, 2: yours and its producer cancelled it.
never_refused()
local pool, id, fence, lease = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local f = redis.call('HMGET', P .. ':job:' .. id, 'state', 'fence', 'cancel')
if f[1] ~= 'running' or f[2] ~= fence then return 0 end
redis.call('ZADD', P .. ':running:' .. pool, int(now_ms() + lease), id)
redis.call('HDEL', P .. ':job:' .. id, 'graced') -- it lives: the next pause of the store is another one
if f[3] == '1' then return 2 end
return 1
