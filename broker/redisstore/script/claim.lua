-- Claim the most urgent waiting job of a pool.
-- ARGV: pool, pool limit, lease_ms, keep_ms, books, close_by_ms.
-- Jobs met on the way that cannot be run are set aside.
-- Returns {now, 'none'|'full'|'job'}, then how many jobs without a text ended, of each its id and its record as a list
-- after its length, and after their length class and id of jobs whose record is gone; with 'job' then {id, fence, offers,
-- attempts, accepted, deadline, reserve, spec, admission, text, flags version}.
never_refused()
local pool, limit, lease, keep, books = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local close_by = tonumber(ARGV[6])
local now = now_ms()
local running = redis.call('ZCARD', P .. ':running:' .. pool)
if running >= math.min(limit, live_slots(pool, now)) then return { now, 'full', 0, 0 } end
local ended, lost = {}, {}
local function reply(what, job)
  local out = { now, what, #ended }
  for _, id in ipairs(ended) do tell_end(out, id) end
  out[#out + 1] = #lost
  for _, x in ipairs(lost) do out[#out + 1] = x end
  for _, x in ipairs(job) do out[#out + 1] = x end
  return out
end
for _ = 1, 16 do
  local member = redis.call('ZRANGE', P .. ':waiting:' .. pool, 0, 0)[1]
  if not member then return reply('none', {}) end
  local class, id = split(member)
  local r = record(id)
  local text = redis.call('GET', P .. ':text:' .. id)
  if not r then
    end_lost(pool, member, class, id, now, books)
    lost[#lost + 1] = class
    lost[#lost + 1] = id
  elseif r.state ~= 'waiting' then
    unqueue(pool, member, id, class) -- a place left over: the job itself is accounted for
  elseif not text then
    end_job(id, r, now, { outcome = 'failed', cause = 'record_lost', reason = 'record_lost', backend = '',
      first_byte_ms = '-1', details = '{}', keep_ms = keep, books = books })
    ended[#ended + 1] = id
  else
    unqueue(pool, member, id, r.class)
    redis.call('ZADD', P .. ':running:' .. pool, lapse(now, lease, tonumber(r.deadline), close_by), id)
    redis.call('ZADD', P .. ':started:' .. pool, int(now), id)
    redis.call('ZADD', P .. ':silent:' .. pool, int(now), id)
    -- never one that was given before, even if the store has lost its last second
    local fence = math.max(tonumber(r.fence or '0') + 1, now)
    redis.call('HSET', P .. ':job:' .. id, 'fence', int(fence))
    redis.call('HSET', P .. ':job:' .. id, 'state', 'running', 'queue_wait', int(math.max(0, now - tonumber(r.accepted))))
    redis.call('HDEL', P .. ':job:' .. id, 'first_byte_at', 'graced') -- of an earlier claim
    redis.call('PUBLISH', P .. ':news', id)
    return reply('job', { id, fence, tonumber(r.offers or '0'), tonumber(r.attempts or '0'),
      tonumber(r.accepted), tonumber(r.deadline), tonumber(r.reserve), r.spec or '', r.admission or '', text,
      tonumber(redis.call('GET', P .. ':flags:version') or '0') })
  end
end
return reply('none', {})
