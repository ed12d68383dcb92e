-- Cancel a job. ARGV: id, keep_ms, books.
-- Returns 'missing', 'done', 'late', 'cancelled' (it was waiting) or 'running' (its worker will cut it).
never_refused()
local id = ARGV[1]
local r = record(id)
if not r then return 'missing' end
if r.state == 'done' then return 'done' end
local now = now_ms()
if now >= tonumber(r.deadline) then return 'late' end
if r.state == 'waiting' then
  end_job(id, r, now, { outcome = 'cancelled', cause = '', reason = '', backend = '', first_byte_ms = '-1',
    details = '{}', keep_ms = ARGV[2], books = ARGV[3] })
  return 'cancelled'
end
redis.call('HSET', P .. ':job:' .. id, 'cancel', '1')
redis.call('PUBLISH', P .. ':cancel', id)
return 'running'
