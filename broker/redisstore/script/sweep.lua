-- Mend what time has broken. ARGV: books, keep_ms, most, max_offers, least slack of a job offered again (in paid, in
-- free; the same where paid may take it from free), settle_by_ms, stood_still_ms, grace_ms, keep_overdue_ms, most_graces
-- (between two renewals).
-- A store that was away is no crash of a worker: when nobody has swept for stood_still_ms, or ever, leases that
-- lapsed meanwhile get grace_ms more, so that workers can renew first.
-- Waiting jobs whose first byte is past due are expired, keep_overdue_ms later (0 but in a lab). Claimed jobs whose
-- lease lapsed go back into the order when they pass the re-check (slackgate.Reoffer) and were not handed out too
-- often; else they are failed.
-- Spend rows that are open settle_by_ms after their attempt must have been over, and as long after the store was back,
-- are settled as unknown: whoever made it is gone, and no job ends that would settle it.
-- Returns {now, expired, reoffered, failed, length of what follows, pool, class and id of jobs whose record is gone, how
-- many jobs ended, and of each its id and its record as a list after its length}.
never_refused()
local books, keep, most, max_offers = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local least = { paid = tonumber(ARGV[5]), free = tonumber(ARGV[6]) }
local least_rerouted = { paid = tonumber(ARGV[7]), free = tonumber(ARGV[8]) }
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
if now - last > tonumber(ARGV[10]) then
  redis.call('SET', P .. ':back', int(now))
  for _, pool in ipairs({ 'paid', 'free' }) do
    local until_ms = int(now + tonumber(ARGV[11]))
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. ':running:' .. pool, '-inf', until_ms)) do
      -- not for ever, or slow sweeps would prolong a dead worker's lease without end
      if redis.call('HGET', P .. ':job:' .. id, 'state') == 'running' and
          redis.call('HINCRBY', P .. ':job:' .. id, 'graced', 1) <= tonumber(ARGV[13]) then
        redis.call('ZADD', P .. ':running:' .. pool, until_ms, id)
      end
    end
  end
end
for _, pool in ipairs({ 'paid', 'free' }) do
  local overdue = int(now - tonumber(ARGV[12]))
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
      local needs = string.find(r.spec, '"rescue":true', 1, true) and least_rerouted or least
      if r.cancel == '1' then
        close(id, r, 'cancelled', '', '')
        failed = failed + 1
      elseif offers < max_offers and urgency - now >= needs[pool] then
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
local due = now - tonumber(ARGV[9])
if tonumber(redis.call('GET', P .. ':back') or '0') > due then due = -1 end
for _, key in ipairs(redis.call('ZRANGEBYSCORE', P .. ':spend:due', '-inf', int(due), 'LIMIT', 0, most)) do
  redis.call('ZREM', P .. ':spend:due', key)
  settle_unknown_row(key, now, books)
end
local out = { now, expired, reoffered, failed, #gone }
for _, x in ipairs(gone) do out[#out + 1] = x end
out[#out + 1] = #ended
for _, id in ipairs(ended) do tell_end(out, id) end
return out
