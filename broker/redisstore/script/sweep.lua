-- Mend what time has broken. ARGV: books, keep_ms, most, max_offers, settle_by_ms, stood_still_ms, grace_ms,
-- keep_overdue_ms, most_graces (between two renewals).
-- A store that was away is no crash of a worker: when nobody has swept for stood_still_ms, or ever, leases that
-- lapsed meanwhile get grace_ms more, so that workers can renew first.
-- Waiting jobs whose first byte is past due are expired, keep_overdue_ms later (0 but in a lab). Claimed jobs whose
-- lease lapsed go back into the order when they have slack left and were not handed out too often; else they are
-- failed. Whether the slack is enough is for the worker's re-check to say, or for the re-offer of a pool without workers.
-- Spend rows that are open settle_by_ms after their attempt must have been over, and as long after the store was back,
-- are settled as unknown: whoever made it is gone, and no job ends that would settle it.
-- Returns {now, 1 if the store was back within grace_ms, expired, reoffered, failed, length of what follows, pool, class and id of jobs whose record is gone, how
-- many jobs ended, and of each its id and its record as a list after its length}.
never_refused()
local books, keep, most, max_offers = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local now = now_ms()
local expired, reoffered, failed, ended, gone = 0, 0, 0, {}, {}
local function lose(pool, member, class, id)
  end_lost(pool, member, class, id, now, books)
  for _, x in ipairs({ pool, class, id }) do gone[#gone + 1] = x end
  failed = failed + 1
end
local function close(id, r, outcome, cause, reason)
  end_job(id, r, now, { outcome = outcome, cause = cause, reason = reason, backend = '', first_byte_ms = '-1',
    details = '{}', keep_ms = keep, books = books })
  ended[#ended + 1] = id
end
local last = tonumber(redis.call('GET', P .. ':swept') or '0')
redis.call('SET', P .. ':swept', int(now))
if now - last > tonumber(ARGV[6]) then
  redis.call('SET', P .. ':back', int(now))
  for _, pool in ipairs({ 'paid', 'free' }) do
    local until_ms = int(now + tonumber(ARGV[7]))
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. ':running:' .. pool, '-inf', until_ms)) do
      -- not for ever, or slow sweeps would prolong a dead worker's lease without end
      if redis.call('HGET', P .. ':job:' .. id, 'state') == 'running' and
          redis.call('HINCRBY', P .. ':job:' .. id, 'graced', 1) <= tonumber(ARGV[9]) then
        redis.call('ZADD', P .. ':running:' .. pool, until_ms, id)
      end
    end
  end
end
for _, pool in ipairs({ 'paid', 'free' }) do
  local overdue = int(now - tonumber(ARGV[8]))
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. ':waiting:' .. pool, '-inf', overdue, 'LIMIT', 0, most)) do
    local class, id = split(member)
    local r = record(id)
    if not r then
      lose(pool, member, class, id)
    elseif r.state ~= 'waiting' then
      unqueue(pool, member, id, class) -- a place left over: the job itself is accounted for
    else
      close(id, r, 'expired', 'expired_in_queue', '')
      expired = expired + 1
    end
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. ':running:' .. pool, '-inf', int(now), 'LIMIT', 0, most)) do
    local r = record(id)
    if not r then
      lose(pool, '', 'unknown', id)
    elseif r.state ~= 'running' then
      release(pool, id)
    else
      -- whoever held it is fenced off, whatever becomes of it
      redis.call('HINCRBY', P .. ':job:' .. id, 'fence', 1)
      local offers = tonumber(r.offers or '0')
      local urgency = tonumber(r.deadline) - tonumber(r.reserve)
      if r.cancel == '1' then
        close(id, r, 'cancelled', '', '')
        failed = failed + 1
      elseif offers < max_offers and urgency > now then
        settle_unknown(id, tonumber(r.attempts or '0'), now, books)
        release(pool, id)
        redis.call('HSET', P .. ':job:' .. id, 'state', 'waiting', 'offers', offers + 1, 'queue_wait', '-1')
        enqueue(pool, r.member, id, r.class, urgency, tonumber(r.accepted))
        bump('reoffered:' .. pool, 1)
        reoffered = reoffered + 1
      else
        close(id, r, 'failed', 'worker_lost', 'worker_lost')
        failed = failed + 1
      end
    end
  end
end
local due, back = now - tonumber(ARGV[5]), tonumber(redis.call('GET', P .. ':back') or '0')
if back > due then due = -1 end
for _, key in ipairs(redis.call('ZRANGEBYSCORE', P .. ':spend:due', '-inf', int(due), 'LIMIT', 0, most)) do
  redis.call('ZREM', P .. ':spend:due', key)
  settle_unknown_row(key, now, books)
end
local out = { now, now - back < tonumber(ARGV[7]) and 1 or 0, expired, reoffered, failed, #gone }
for _, x in ipairs(gone) do out[#out + 1] = x end
out[#out + 1] = #ended
for _, id in ipairs(ended) do tell_end(out, id) end
return out
