-- A worker that must stop gives a claimed job back, in its old place.
-- ARGV: pool, id, fence, ledger_rows. Returns 1, or 0 when fenced.
local pool, id, fence = ARGV[1], ARGV[2], ARGV[3]
local r = record(id)
if not r or r.state ~= 'running' or r.fence ~= fence then return 0 end
local now = now_ms()
settle_unknown(id, tonumber(r.attempts or '0'), now, ARGV[4])
release(pool, id)
redis.call('HSET', P .. ':job:' .. id, 'state', 'waiting', 'queue_wait', '-1')
redis.call('HINCRBY', P .. ':job:' .. id, 'fence', 1)
enqueue(pool, r.member, id, r.class, tonumber(r.deadline) - tonumber(r.reserve), tonumber(r.accepted))
return 1
