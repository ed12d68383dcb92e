-- Open a spend row before a backend is called. ARGV: id, fence, attempt, row, due, the most it may cost.
-- Returns 1, or 0 when the job is not the caller's any more: then no backend
-- may be called.
never_refused()
local id, fence, attempt, row, due = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local function open()
  redis.call('HSET', P .. ':spend:open', id .. '/' .. attempt, row)
  redis.call('ZADD', P .. ':spend:due', due, id .. '/' .. attempt)
end
if fence == 'probe' then -- a call that belongs to no job
  open()
  return 1
end
local f = redis.call('HMGET', P .. ':job:' .. id, 'state', 'fence')
if f[1] ~= 'running' or f[2] ~= fence then return 0 end
-- counted before it is written: a row that is missing is passed over, one that
-- is not counted would be lost
redis.call('HSET', P .. ':job:' .. id, 'attempts', attempt)
open()
reserve_attempt(id, tonumber(ARGV[6]))
return 1
