-- Steps of slots of one pool, each for itself and in their order: between two calls of a backend a slot has one job end
-- and claims the next. See broker.Step.
-- ARGV: pool, pool limit, lease_ms, keep_ms, books, close_by_ms, how many claims there are, then of each step its name, how many arguments it has,
-- and those.
-- Returns {now}, and of each step the length of its reply and that; or -1, and why it failed.
never_refused()
share_writes()
local pool, limit, lease, keep, books = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local close_by, claims = tonumber(ARGV[6]), tonumber(ARGV[7])
local now = now_ms()

-- A step is a function of its first and its last argument, and returns a list.
local steps = {}

-- Its first answer text came. Arguments: id, fence, how many ms ago.
function steps.answers(i)
  local id = ARGV[i]
  if redis.call('HGET', P .. ':job:' .. id, 'fence') == ARGV[i + 1] then
    take(P .. ':silent:' .. pool, id)
    redis.call('HSET', P .. ':job:' .. id, 'first_byte_at', int(now - ARGV[i + 2]))
    tell(P .. ':news', id)
  end
  return {}
end

-- Open a spend row before a backend is called. Arguments: id, fence, attempt, row, due, the most it may cost.
-- Returns 1, or 0 when the job is not the caller's any more: then no backend may be called.
function steps.open(i)
  local id, fence, attempt, row, due, most = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5]
  local of_job = fence ~= 'probe' -- a probe's call belongs to none
  if of_job then
    local f = redis.call('HMGET', P .. ':job:' .. id, 'state', 'fence')
    if f[1] ~= 'running' or f[2] ~= fence then return { 0 } end
    -- counted before it is written: a row that is missing is passed over, one that
    -- is not counted would be lost
    redis.call('HSET', P .. ':job:' .. id, 'attempts', attempt)
  end
  redis.call('HSET', P .. ':spend:open', id .. '/' .. attempt, row)
  redis.call('ZADD', P .. ':spend:due', due, id .. '/' .. attempt)
  if of_job then reserve_attempt(id, tonumber(most)) end
  return { 1 }
end

-- Commit a claimed job's outcome with its ledger rows, fenced. Arguments: id, fence, outcome, cause, reason, backend,
-- first_byte_ms, details, answer, then the attempts to settle, as settle.lua takes them.
-- Returns the job as it ended: its id, and its record as a list after its length; also when this very claim had
-- committed before. Nothing when fenced; a fenced caller still settles its own spend rows.
local ended, failed = {}, {} -- jobs that did, and those whose step broke off
local came_free, taken = 0, 0 -- slots, in this call
function steps.finish(i, last)
  local id, fence, outcome, cause, reason = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local settled = 0
  for k = i + 9, last, const.settle_args do
    if settle(attempt_at(k), books) then settled = settled + 1 end
  end
  local r = record(id)
  if not r or r.fence ~= fence then return {} end
  if r.state ~= 'done' and r.state ~= 'running' then return {} end
  ended[id] = true
  if r.state == 'done' then return tell_end({}, id, r.flat) end
  came_free = came_free + 1
  -- a cancel that arrived in time wins over whatever else the attempt came to
  if r.cancel == '1' and outcome ~= 'usable' then outcome, cause, reason = 'cancelled', '', '' end
  if ARGV[i + 8] ~= '' then redis.call('SET', P .. ':answer:' .. id, ARGV[i + 8], 'PX', keep) end
  return tell_end({}, id, end_job(id, r, now, { outcome = outcome, cause = cause, reason = reason, backend = ARGV[i + 5],
    first_byte_ms = ARGV[i + 6], details = ARGV[i + 7], keep_ms = keep, books = books, settled = settled }))
end

-- Count how long calls took, in slices of the store's own clock. Arguments per call: name, field, ms (-1 for a call that
-- was cut).
function steps.measure(i, last)
  local slice = int(math.floor(now / const.slice_ms))
  for k = i, last, 3 do
    local key, ms = P .. ':latency:' .. ARGV[k] .. ':' .. slice, tonumber(ARGV[k + 2])
    add(key, ARGV[k + 1], 1)
    if ms >= 0 then add(key, const.sum_field, ms) end
    sums_live(key, const.slices_keep_ms)
  end
  return {}
end

-- Claim the most urgent waiting job of the pool. Jobs met on the way that cannot be run are set aside. Arguments: the job
-- that the same slot has end in this call, if any, whether the slot asks again because a reply was lost, and the most bytes
-- of texts that a call gives out.
-- Returns {'none'|'full'|'later'|'job'} (later: this call has given out enough, or the slot's own job did not end), then
-- how many jobs without a text ended, of each its id and its record as a list after its length, and after their length
-- class and id of jobs whose record is gone; with 'job' then what job_of has.
local given = 0 -- bytes of texts

-- The most urgent waiting job that this call has not looked at yet, or nil. Who is looked at is taken out of the order,
-- when that is written.
local ahead, looked_at = {}, 0
local function most_urgent()
  if looked_at == #ahead then
    for _, member in ipairs(redis.call('ZRANGE', P .. ':waiting:' .. pool, looked_at, looked_at + claims - 1)) do
      ahead[#ahead + 1] = member
    end
  end
  if looked_at == #ahead then return nil end
  looked_at = looked_at + 1
  return ahead[looked_at]
end

local function job_of(id, r, fence, text)
  given = given + #text
  return { id, fence, tonumber(r.offers or '0'), tonumber(r.attempts or '0'),
    tonumber(r.accepted), tonumber(r.deadline), tonumber(r.reserve), r.spec or '', r.admission or '', text,
    once('flags', function() return tonumber(redis.call('GET', P .. ':flags:version') or '0') end) }
end
function steps.claim(i)
  local before, again, most_bytes = ARGV[i], ARGV[i + 1] == '1', tonumber(ARGV[i + 2])
  if failed[before] or given > most_bytes then return { 'later', 0, 0 } end
  local slots = once('slots', function() return math.min(limit, live_slots(pool, now)) end)
  local unmade, lost = {}, {}
  local function reply(what, job)
    local out = { what, #unmade }
    for _, id in ipairs(unmade) do tell_end(out, id) end
    out[#out + 1] = #lost
    for _, x in ipairs(lost) do out[#out + 1] = x end
    for _, x in ipairs(job) do out[#out + 1] = x end
    return out
  end
  if again then -- the job that the lost reply spoke of
    local id, fence = string.match(redis.call('HGET', P .. ':job:' .. before, 'successor') or '', '^(.*) (%d+)$')
    local r, text = id and record(id), id and redis.call('GET', P .. ':text:' .. id)
    if r and text and r.state == 'running' and r.fence == fence then return reply('job', job_of(id, r, tonumber(fence), text)) end
  end
  local running = once('running', function() return redis.call('ZCARD', P .. ':running:' .. pool) end)
  if running - came_free + taken >= slots then return reply('full', {}) end
  for _ = 1, 16 do
    local member = most_urgent()
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
      unmade[#unmade + 1] = id
    else
      unqueue(pool, member, id, r.class)
      put(P .. ':running:' .. pool, lapse(now, lease, tonumber(r.deadline), close_by), id)
      put(P .. ':started:' .. pool, int(now), id)
      put(P .. ':silent:' .. pool, int(now), id)
      taken = taken + 1
      -- never one that was given before, even if the store has lost its last second
      local fence = math.max(tonumber(r.fence or '0') + 1, now)
      redis.call('HSET', P .. ':job:' .. id, 'fence', int(fence), 'state', 'running',
        'queue_wait', int(math.max(0, now - tonumber(r.accepted))))
      if r.first_byte_at or r.graced then redis.call('HDEL', P .. ':job:' .. id, 'first_byte_at', 'graced') end -- of an earlier claim
      tell(P .. ':news', id)
      if ended[before] then redis.call('HSET', P .. ':job:' .. before, 'successor', id .. ' ' .. int(fence)) end
      return reply('job', job_of(id, r, fence, text))
    end
  end
  return reply('none', {})
end

local out = { int(now) }
local i = 8
while i <= #ARGV do
  local step, n = steps[ARGV[i]], tonumber(ARGV[i + 1])
  local ok, reply = pcall(step, i + 2, i + 1 + n)
  if ok then
    out[#out + 1] = #reply
    for _, x in ipairs(reply) do out[#out + 1] = x end
  else
    if ARGV[i] == 'finish' then failed[ARGV[i + 2]] = true end
    out[#out + 1] = -1
    out[#out + 1] = type(reply) == 'table' and reply.err or tostring(reply)
  end
  i = i + 2 + n
end
write_shared()
return out
