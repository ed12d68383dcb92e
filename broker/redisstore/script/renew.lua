-- Prolong a lease. ARGV: pool, id, fence, lease_ms, close_by_ms.
-- Returns 0: not yours any more, 1: yours, 2: yours and its producer cancelled it.
never_refused()
local pool, id, fence, lease, close_by = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local r = record(id)
if not r or r.state ~= 'running' or r.fence ~= fence then return 0 end
redis.call('ZADD', P .. ':running:' .. pool, lapse(now_ms(), lease, tonumber(r.deadline), close_by), id)
redis.call('HDEL', P .. ':job:' .. id, 'graced') -- it lives: the next pause of the store is another one
if r.cancel == '1' then return 2 end
return 1
