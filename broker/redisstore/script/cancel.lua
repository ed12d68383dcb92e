-- Cancel jobs. ARGV: keep_ms, books, name of this call, ids.
-- A job that ends here keeps the call's name, so that a caller who lost the reply can tell what it ended.
-- Returns per id 'missing', 'done', 'late', 'cancelled' (it was waiting) or 'running' (its worker will cut it); after
-- 'cancelled' its id and its record as a list after its length.
never_refused()
local now = now_ms()
local function cancel(id)
  local r = record(id)
  if not r then return 'missing' end
  if r.state == 'done' then return 'done' end
  if now >= tonumber(r.deadline) then return 'late' end
  if r.state == 'waiting' then
    end_job(id, r, now, { outcome = 'cancelled', cause = '', reason = '', backend = '', first_byte_ms = '-1',
      details = '{}', keep_ms = ARGV[1], books = ARGV[2] })
    redis.call('HSET', P .. ':job:' .. id, 'cancelled_by', ARGV[3])
    return 'cancelled'
  end
  redis.call('HSET', P .. ':job:' .. id, 'cancel', '1')
  redis.call('PUBLISH', P .. ':cancel', id)
  return 'running'
end
local out = {}
for i = 4, #ARGV do
  local what = cancel(ARGV[i])
  out[#out + 1] = what
  if what == 'cancelled' then tell_end(out, ARGV[i]) end
end
return out
