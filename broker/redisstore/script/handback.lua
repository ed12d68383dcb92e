-- A worker that must stop gives a claimed job back, in its old place; one that its producer took back
-- meanwhile ends here.
-- ARGV: pool, id, fence, keep_ms, books, then the attempts to settle, as settle.lua takes them. Those that are open
-- beside them are settled as unknown.
-- Returns {1}, followed by the job if it ended here: its id, and its record as a list after its length; {0} when fenced.
-- A fenced caller still settles its own spend rows.
never_refused()
local pool, id, fence = ARGV[1], ARGV[2], ARGV[3]
for i = 6, #ARGV, const.settle_args do settle(attempt_at(i), ARGV[5]) end
local r = record(id)
if not r or r.state ~= 'running' or r.fence ~= fence then return { 0 } end
local now = now_ms()
if r.cancel == '1' then
  redis.call('HINCRBY', P .. ':job:' .. id, 'fence', 1)
  end_job(id, r, now, { outcome = 'cancelled', cause = '', reason = '', backend = '', first_byte_ms = '-1',
    details = '{}', keep_ms = ARGV[4], books = ARGV[5] })
  return tell_end({ 1 }, id)
end
settle_unknown(id, tonumber(r.attempts or '0'), now, ARGV[5])
release(pool, id)
redis.call('HSET', P .. ':job:' .. id, 'state', 'waiting', 'queue_wait', '-1')
redis.call('HINCRBY', P .. ':job:' .. id, 'fence', 1)
enqueue(pool, r.member, id, r.class, tonumber(r.deadline) - tonumber(r.reserve), tonumber(r.accepted))
return { 1 }
