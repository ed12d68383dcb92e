-- Offer jobs to the pools, many in one step and in order. Every number that is
-- compared was computed by the gate's rule in Go; here are only comparisons.
--
-- ARGV: give_up_at, books, record_extra_ms, flags version, instant until which the flags hold (0: no
-- end), number of jobs, then for paid and for free:
--   limit, released (the counter when the ladder was built), the rungs: at (-1 on the last), max and wait of each,
--   rung_digits characters a number, and in the same way how many unfinished jobs due before each rung's mark one
--   producer may have ('': any number),
--   number of producers whose submissions were refused without asking here, then name and count of each
-- then per job:
--   id, class, producer, terms, spec, text, and as the terms say: key ('1': idempotency key and hash of the body follow),
--   line ('1': batch, name and place of the job's line there follow)
-- Terms are words with a blank between them, '-' for none. Many jobs of a call have the same, so that they are read once:
--   mode, fence, deadline_ms, reserve_ms, slack, lifetime of the key, key, line, where mode is 'new', 'miss'
--   (book a miss, offer nothing), 'again' (a claimed job, held under fence, that needs another pool) or 'move'
--   (a waiting job whose pool is being drained),
--   1 if budgets bind it, else 0; if so: the most it may cost, and what may be booked already of its producer's and
--   of its class's budget (- for none) for paid to take it,
--   1 if its producer is limited, else 0; if so: the time between two submissions and how far ahead of it they may
--   come, in microseconds (0, 0: as they like), and how many unfinished jobs there may be (0: any number),
--   then for two places:
--   path (- for none), max_inflight, max_age, max_class_age, need, need_plus_age,
--   laddered, first rung that binds, what that rung allows this job
-- Returns {now, 'stale'} or {now, 'flags'} (they have changed since the numbers were computed: nothing was done)
-- or {now, 'ok', capacity of paid, of free}, then per job the path that took it
-- ('' for none, 'same' or 'conflict' where the key is bound already, to this body or to another, 'gone' where the
-- batch was cancelled), 1 if it needs a ticket (a slot is free that no job waits for), the id of the
-- job that the key is bound to, per pool: waiting, running, age, class age, ahead, broken rung, waiting jobs on it, with
-- levels the rung on which the producer has its share and its jobs there; and
-- where budgets bind the job, what was spent and reserved of its producer's, then of its class's; where its producer is
-- limited, how far ahead it is in microseconds and its unfinished jobs.
local a = 1
local function arg() a = a + 1; return ARGV[a - 1] end
local function num() return tonumber(arg()) end

local now = now_ms()
local give_up, books, extra = num(), arg(), num()
local flags_version, flags_until, jobs = num(), num(), num()
if give_up > 0 and now > give_up then return { now, 'stale' } end
local counters = redis.call('MGET', P .. ':flags:version', P .. ':released:paid', P .. ':released:free')
if tonumber(counters[1] or '0') ~= flags_version or
    (flags_until > 0 and now >= flags_until) then
  return { now, 'flags' }
end

local wanted = { paid = {}, free = {} } -- what producers asked of the pools in this call, or since the last
local function want(pool, producer, n) wanted[pool][producer] = (wanted[pool][producer] or 0) + n end

local rung_digits = 16
local pools = {}
for i, name in ipairs({ 'paid', 'free' }) do
  local p = { name = name, limit = num(), rungs = {}, class_age = {}, admitted = 0 }
  local at_build = num()
  p.ladder, p.levels = arg(), arg()
  for _ = 1, num() do want(name, arg(), num()) end
  p.last = #p.ladder / (3 * rung_digits)
  p.capacity = math.min(p.limit, live_slots(name, now))
  p.waiting = redis.call('ZCARD', P .. ':waiting:' .. name)
  p.running = redis.call('ZCARD', P .. ':running:' .. name)
  p.free = p.capacity - p.running
  -- A worker that came free since the ladder was built has taken a place on it:
  -- the next job's start was counted on that very worker.
  if p.last > 0 then p.running = p.running + math.max(0, tonumber(counters[i + 1] or '0') - at_build) end
  p.age = age_of(P .. ':age:' .. name, now)
  p.width = p.levels == '' and 7 or 9 -- of what is said of it to each job
  pools[name] = p
end

local function class_age(p, class)
  if not p.class_age[class] then
    p.class_age[class] = age_of(P .. ':age:' .. p.name .. ':' .. class, now)
  end
  return p.class_age[class]
end

-- a rung of the ladder: of the many, the few that are asked for are read
local function rung_at(p, i)
  local r = p.rungs[i]
  if not r then
    local from = (i - 1) * 3 * rung_digits
    local function number(n) return tonumber(string.sub(p.ladder, from + n * rung_digits + 1, from + (n + 1) * rung_digits)) end
    r = { at = number(0), max = number(1), wait = number(2) }
    p.rungs[i] = r
  end
  return r
end

-- the rung that stands for the place behind so many jobs: the last that allows no more. max grows from rung to rung
local function rung_for(p, jobs)
  local lo, hi = 1, p.last
  while lo < hi do
    local mid = math.ceil((lo + hi) / 2)
    if rung_at(p, mid).max <= jobs then lo = mid else hi = mid - 1 end
  end
  return lo
end

-- What is written of the admitted jobs once for all of them. Nothing in this
-- script reads the ages again, and whoever counts waiting jobs or a producer's
-- has them written first.
local put_off = {}
local function later(key, score, member)
  local list = put_off[key]
  if not list then
    list = { n = 0 }
    put_off[key] = list
  end
  local n = list.n
  list[n + 1], list[n + 2], list.n = score, member, n + 2
end
local function write(key)
  local list = put_off[key]
  if not list then return end
  for i = 1, list.n, 1000 do redis.call('ZADD', key, unpack(list, i, math.min(i + 999, list.n))) end
  put_off[key] = nil
end

local function count_waiting(p, upto)
  write(P .. ':waiting:' .. p.name)
  return redis.call('ZCOUNT', P .. ':waiting:' .. p.name, '-inf', upto)
end

-- waiting jobs that count on a rung
local function waiting_on(p, rung)
  if rung.at < 0 then return p.waiting end
  if not rung.count then rung.count = count_waiting(p, '(' .. int(now + rung.at)) end
  return rung.count
end

-- waiting jobs that go before a newcomer; the next has the same slack more often than not
local function ahead_of(p, slack)
  if p.ahead_of ~= slack then p.ahead_of, p.ahead = slack, count_waiting(p, int(now + slack)) end
  return p.ahead
end

-- the first rung that a newcomer would break and the waiting jobs on it; 0: none
local function breaks(p, first, first_max)
  if first > p.last then return 1, p.waiting end
  for i = first, p.last do
    local rung = rung_at(p, i)
    local max = rung.max
    if i == first then max = first_max end
    local n = waiting_on(p, rung)
    if p.running + n + 1 > max then return i, n end
    -- even all of them together fit here, and later rungs allow more
    if p.running + p.waiting + 1 <= max then return 0, 0 end
  end
  return 0, 0
end

local alive = {} -- the keys of producers' unfinished jobs among them

-- the first rung on which the producer has its share already, and its jobs there; 0: none
local function over_share(p, producer, first)
  write(live_key(p.name, producer))
  local all = live_jobs(p.name, producer, now)
  for i = first, p.last do
    local level = tonumber(string.sub(p.levels, (i - 1) * rung_digits + 1, i * rung_digits))
    if all + 1 <= level then return 0, 0 end
    local n, at = all, rung_at(p, i).at
    if at >= 0 then n = live_jobs(p.name, producer, now, '(' .. int(now + at)) end
    if n + 1 > level then return i, n end
  end
  return 0, 0
end

-- places in the order of arrival, taken for all the jobs at once: one left over does no harm
local last_seq
local function next_seq()
  last_seq = (last_seq or redis.call('INCRBY', P .. ':seq', int(jobs)) - jobs) + 1
  return int(last_seq)
end

-- what is booked under a name: spent today, and reserved
local spent_today = spent_key(now)
local function booked(field)
  return tonumber(redis.call('HGET', spent_today, field) or '0'), tonumber(redis.call('HGET', P .. ':budget:reserved', field) or '0')
end

-- whether a producer's rate allows this submission; if so, it is counted
local function in_rate(quota, producer)
  local key, now_us = P .. ':rate:' .. producer, now * 1000
  local used_until = math.max(tonumber(redis.call('GET', key) or '0'), now_us)
  quota.ahead = used_until - now_us
  if quota.ahead > quota.tolerance then return false end
  local next_us = used_until + quota.interval
  redis.call('SET', key, int(next_us), 'PX', int(math.ceil((next_us - now_us) / 1000)))
  return true
end

-- terms are read once for all the jobs that have the same
local known_terms = {}
local function terms_of(text)
  local t = known_terms[text]
  if t then return t end
  local words, n, w = {}, 0, 0
  for word in string.gmatch(text, '%S+') do
    n = n + 1
    words[n] = word
  end
  local function word()
    w = w + 1
    return words[w]
  end
  local function number() return tonumber(word()) end
  t = { mode = word(), fence = word(), deadline_ms = number(), reserve = number(), slack = number(), idem_ttl = number(),
    key = word() == '1', line = word() == '1', places = {} }
  if word() == '1' then t.budget = { cost = number(), most = { number(), number() } } end
  if word() == '1' then t.quota = { interval = number(), tolerance = number(), max = number() } end
  for place = 1, 2 do
    local b = { path = word(), max_inflight = number(), max_age = number(), max_class_age = number(), need = number(),
      plus_age = word() == '1', laddered = word() == '1', first = number(), first_max = number() }
    if b.path ~= '-' then t.places[#t.places + 1] = b end
  end
  local deadline = now + t.deadline_ms
  t.deadline, t.deadline_int, t.reserve_int, t.urgency = deadline, int(deadline), int(t.reserve), int(deadline - t.reserve)
  t.ttl, t.idem_ttl_int = int(t.deadline_ms + extra), int(t.idem_ttl + extra)
  known_terms[text] = t
  return t
end

-- a text as JSON; the same few come again and again
local quoted = {}
local function quote(text)
  if not quoted[text] then quoted[text] = cjson.encode(text) end
  return quoted[text]
end

-- What is promised to a job, for its record; see fields. What jobs under the same terms have in common is written once.
local function promise_of(t, need, age, wait, seq, class, producer, batch)
  if t.class ~= class or t.producer ~= producer then
    t.class, t.producer = class, producer
    t.promise = string.format('{"v":%d,"accepted_at_ms":%.0f,"deadline_at_ms":%s,"reserve_ms":%s,"class":%s,"producer":%s,"seq":',
      layout.version, now, t.deadline_int, t.reserve_int, quote(class), quote(producer))
  end
  if t.need ~= need or t.age ~= age or t.wait ~= wait then
    t.need, t.age, t.wait = need, age, wait
    t.admission = string.format(',"admission":{"slack_ms":%.0f,"need_ms":%.0f,"queue_age_ms":%.0f,"predicted_wait_ms":%.0f}}',
      t.slack, need, age, wait)
  end
  if batch then return t.promise .. seq .. ',"batch":' .. cjson.encode(batch) .. t.admission end
  return t.promise .. seq .. t.admission
end

-- batches whose lines became jobs: the lines, when the last is due, and how long they are kept at least
local batches = {}
local function batch_of(id)
  local b = batches[id]
  if not b then
    b = { cancelled = redis.call('HEXISTS', P .. ':batch:' .. id, 'cancelled') == 1, lines = {}, told = 0, due = 0, ttl = 0 }
    batches[id] = b
  end
  return b
end

local pool_names = { 'paid', 'free' }
local now_int = int(now)
local newest, newest_ttl = {}, 0 -- the admitted jobs by producer
local out, told = { now, 'ok', pools.paid.capacity, pools.free.capacity }, 4 -- the reply, and how much of it is there
while a <= #ARGV do
  local id, class, producer, t, spec, text = arg(), arg(), arg(), terms_of(arg()), arg(), arg()
  local mode, fence, slack, idem_ttl = t.mode, t.fence, t.slack, t.idem_ttl
  local idem, hash, batch, line, place_at = '', '', '', '', 0
  if t.key then idem, hash = arg(), arg() end
  if t.line then batch, line, place_at = arg(), arg(), num() end
  local budget
  if t.budget then
    budget = { cost = t.budget.cost, fits = true, seen = {} }
    for i, field in ipairs(budget_fields(class, producer)) do
      local most, spent, reserved = t.budget.most[i], booked(field)
      if most and spent + reserved > most then budget.fits = false end
      budget.seen[#budget.seen + 1] = spent
      budget.seen[#budget.seen + 1] = reserved
    end
  end
  local quota
  if t.quota then quota = { interval = t.quota.interval, tolerance = t.quota.tolerance, max = t.quota.max, ahead = 0, live = 0 } end
  local took, bound_to, ticket = '', '', 0
  if idem ~= '' then
    local bound = redis.call('GET', P .. ':idem:' .. idem)
    -- a key whose job is off the record names nothing any more
    if bound and redis.call('EXISTS', P .. ':job:' .. string.sub(bound, #hash + 2)) == 1 then
      mode, bound_to = 'bound', string.sub(bound, #hash + 2)
      if string.sub(bound, 1, #hash) == hash then took = 'same' else took = 'conflict' end
    end
  end
  if batch ~= '' and took == '' and batch_of(batch).cancelled then
    mode, took = 'gone', 'gone'
  end
  if quota and (mode == 'new' or mode == 'miss') then
    if quota.interval > 0 and not in_rate(quota, producer) then mode = 'over' end
    if quota.max > 0 and mode == 'new' then
      write(live_key('paid', producer))
      write(live_key('free', producer))
      quota.live = live_jobs('paid', producer, now) + live_jobs('free', producer, now)
      if quota.live >= quota.max then mode = 'over' end
    end
  end
  local held
  if mode == 'again' then
    held = record(id)
    if not held or held.state ~= 'running' or held.fence ~= fence or held.cancel == '1' then mode = 'fenced' end
  elseif mode == 'move' then
    held = record(id)
    if not held or held.state ~= 'waiting' then mode = 'fenced' end
  end
  local said = told + 1 -- where this job's part of the reply begins
  out[said], out[said + 1], out[said + 2] = '', 0, ''
  told = told + 3
  for _, name in ipairs(pool_names) do
    local p = pools[name]
    p.said = told
    out[told + 1], out[told + 2], out[told + 3], out[told + 4] = p.waiting, p.running, p.age, class_age(p, class)
    for i = told + 5, told + p.width do out[i] = 0 end
    told = told + p.width
  end
  local refused = {}
  for _, b in ipairs(t.places) do
    local path, need, laddered, first = b.path, b.need, b.laddered, b.first
    if took == '' and (mode == 'new' or held and mode ~= 'fenced') then
      local p = pools[path]
      local s = p.said
      local wait = 0
      if b.plus_age then need = need + p.age end
      local ok = p.capacity > 0 and p.waiting + p.running < b.max_inflight and
          p.age < b.max_age and class_age(p, class) < b.max_class_age
      if laddered then
        out[s + 5] = ahead_of(p, slack)
        out[s + 6], out[s + 7] = breaks(p, first, b.first_max)
        ok = ok and out[s + 6] == 0
        if ok then -- what goes on record of its place
          local i = rung_for(p, p.running + out[s + 5])
          wait, need = rung_at(p, i).wait, rung_at(p, i).at
          if need < 0 then need = i > 1 and rung_at(p, i - 1).at or 0 end
        end
      end
      if p.levels ~= '' and laddered and mode == 'new' and ok then
        out[s + 8], out[s + 9] = over_share(p, producer, first)
        ok = out[s + 8] == 0
      end
      if laddered and mode == 'new' and not ok and p.capacity > 0 then refused[#refused + 1] = path end
      if path == 'paid' and budget and not budget.fits then ok = false end
      if ok then
        if laddered and mode == 'new' then want(path, producer, 1) end
        took = path
        if held then
          local urgency = tonumber(held.deadline) - tonumber(held.reserve)
          unreserve(id)
          drop_live(held.path, held.producer or '', id)
          add_live(path, held.producer or '', id, urgency)
          if mode == 'move' then unqueue(held.path, held.member, id, class) else release(held.path, id) end
          redis.call('HSET', P .. ':job:' .. id, 'state', 'waiting', 'path', path, 'rescued', '1', 'queue_wait', '-1')
          redis.call('HINCRBY', P .. ':job:' .. id, 'fence', 1)
          enqueue(path, held.member, id, class, urgency, tonumber(held.accepted))
          bump('moved:' .. held.path .. ':' .. path, 1)
          pools.paid.ahead_of, pools.free.ahead_of = nil, nil
        else
          local seq = next_seq()
          local member = member_of(seq, class, id)
          redis.call('HSET', P .. ':job:' .. id, 'spec', spec, 'state', 'waiting', 'path', path,
            'promise', promise_of(t, need, p.age, wait, seq, class, producer, batch ~= '' and batch .. ' ' .. line))
          redis.call('PEXPIRE', P .. ':job:' .. id, t.ttl)
          redis.call('SET', P .. ':text:' .. id, text, 'PX', t.ttl)
          -- a refused submission does not bind its key
          -- and a bound one outlives the record of a job that nobody ends for long after its deadline
          if idem ~= '' then redis.call('SET', P .. ':idem:' .. idem, hash .. '|' .. id, 'PX', t.idem_ttl_int) end
          local live = live_key(path, producer)
          later(P .. ':waiting:' .. path, t.urgency, member)
          later(P .. ':age:' .. path, now_int, id)
          later(P .. ':age:' .. path .. ':' .. class, now_int, id)
          later(live, t.urgency, id)
          alive[live] = true
          p.admitted = p.admitted + 1
          if batch ~= '' then
            local b = batch_of(batch)
            local l, n = b.lines, b.told
            l[n + 1], l[n + 2], l[n + 3], b.told = line, place_at, 'J' .. path .. '|' .. id, n + 3
            b.due, b.ttl = math.max(b.due, t.deadline), math.max(b.ttl, idem_ttl)
          end
          if not newest[producer] then newest[producer] = {} end
          table.insert(newest[producer], id)
          newest_ttl = math.max(newest_ttl, idem_ttl)
        end
        if path == 'paid' and budget then set_aside(id, class, producer, budget.cost) end
        -- with as many waiting as slots are free, there are tickets enough
        if p.waiting < p.free then ticket = 1 end
        p.waiting = p.waiting + 1
        for _, r in pairs(p.rungs) do
          if r.count and (r.at < 0 or r.at > slack) then r.count = r.count + 1 end
        end
        if p.ahead_of and p.ahead_of >= slack then p.ahead = p.ahead + 1 end
      end
    end
  end
  if took == '' then
    for _, path in ipairs(refused) do want(path, producer, 1) end
  end
  if mode == 'miss' then
    book_miss('reject', class, producer, '', 'arrived_without_slack', books, {
      'job_id', id, 'path', 'reject', 'class', class, 'producer', producer, 'outcome', 'expired',
      'cause', 'arrived_without_slack', 'at_ms', now_int, 'deadline_at_ms', t.deadline_int,
      'admission', string.format('{"slack_ms":%.0f,"queue_age_ms":%.0f}', slack, math.max(pools.paid.age, pools.free.age)), 'queue_wait_ms', '0', 'first_byte_ms', '-1',
      'late_by_ms', '0' })
  end
  out[said], out[said + 1], out[said + 2] = took, ticket, bound_to
  if budget then
    for i = 1, 4 do out[told + i] = budget.seen[i] end
    told = told + 4
  end
  if quota then
    out[told + 1], out[told + 2] = int(quota.ahead), quota.live
    told = told + 2
  end
end
for key in pairs(put_off) do write(key) end
for id, b in pairs(batches) do
  set_lines(id, b.lines, b.ttl)
  local key = P .. ':batch:' .. id
  if b.due > tonumber(redis.call('HGET', key, 'due') or '0') then redis.call('HSET', key, 'due', int(b.due)) end
end
for key in pairs(alive) do redis.call('PEXPIRE', key, live_ttl) end
for pool, by in pairs(wanted) do
  for producer, n in pairs(by) do add_demand(pool, producer, n, now) end
end
for _, p in pairs(pools) do
  if p.admitted > 0 then bump('admitted:' .. p.name, p.admitted) end
end
for producer, ids in pairs(newest) do
  list_newest('recent', producer, table.concat(ids, ' '), 2000, newest_ttl)
end
return out
