-- Offer jobs to the pools, many in one step and in order. Every number that is compared was computed by the gate's rule
-- in Go; here are only comparisons.
--
-- ARGV[1]  the instant from which the caller has stopped waiting
-- ARGV[2]  the head in JSON: the type admitHead in admit.go names its fields
-- ARGV[3], ARGV[4]  the paid pool's rungs, and the producers' levels on them ('': any number of jobs), as
--          slackgate.Ladder.AppendRungs and slackgate.Shares.AppendLevels write them; ARGV[5], ARGV[6] the free pool's
-- ARGV[7], ARGV[8] and so on: spec and text of each job
--
-- Returns {now, 'stale'}, {now, 'flags'} or {now, 'workers'} (they have changed since the numbers were computed: nothing
-- was done), or {now, 'ok', capacity of paid, of free}, then what is said of each job (see begin_reply and end_reply), how many were
-- revoked, and of each its id and its record as a list after its length.
local now, now_int = now_ms(), nil
now_int = int(now)
local give_up_at, head = tonumber(ARGV[1]), cjson.decode(ARGV[2])
local books = head.books
if now > give_up_at then return { now, 'stale' } end
local counters = redis.call('MGET', P .. ':flags:version', P .. ':released:paid', P .. ':released:free')
if tonumber(counters[1] or '0') ~= head.flags_version or
    (head.flags_until_ms > 0 and now >= head.flags_until_ms) then
  return { now, 'flags' }
end

local pool_names = { 'paid', 'free' }
local wanted = { paid = {}, free = {} } -- what producers asked of the pools in this call, or since the last
local function want(pool, producer, n) wanted[pool][producer] = (wanted[pool][producer] or 0) + n end

local pools = {}
for i, name in ipairs(pool_names) do
  local given = head.pools[i]
  local p = { name = name, rungs = {}, class_age = {}, admitted = 0, ladder = ARGV[2 * i + 1], levels = ARGV[2 * i + 2] }
  for producer, n in pairs(given.refused or {}) do want(name, producer, n) end
  p.last = #p.ladder / (3 * const.rung_digits)
  p.capacity = math.min(given.limit, live_slots(name, now))
  if given.capacity and given.capacity ~= p.capacity then return { now, 'workers' } end
  p.waiting = redis.call('ZCARD', P .. ':waiting:' .. name)
  p.running = redis.call('ZCARD', P .. ':running:' .. name)
  p.free = p.capacity - p.running
  -- A worker that came free since the ladder was built has taken a place on it:
  -- the next job's start was counted on that very worker.
  if p.last > 0 then p.running = p.running + math.max(0, tonumber(counters[i + 1] or '0') - given.released) end
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
    local from = (i - 1) * 3 * const.rung_digits
    local function number(n) return tonumber(string.sub(p.ladder, from + n * const.rung_digits + 1, from + (n + 1) * const.rung_digits)) end
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

-- What is written of the admitted jobs once for all of them (put_later). Nothing in this script reads the ages again, and
-- whoever counts waiting jobs or a producer's has them written first.
local function count_waiting(p, upto)
  write_order(P .. ':waiting:' .. p.name)
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
  write_order(live_key(p.name, producer))
  local all = live_jobs(p.name, producer, now)
  for i = first, p.last do
    local level = tonumber(string.sub(p.levels, (i - 1) * const.rung_digits + 1, i * const.rung_digits))
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
  last_seq = (last_seq or redis.call('INCRBY', P .. ':seq', int(#head.jobs)) - #head.jobs) + 1
  return int(last_seq)
end

-- What follows from terms and from now is worked out once for all the jobs that are offered under them. slack_ms counts
-- from now; what goes on record is the slack that the numbers were computed for. late is set where so much of it has
-- passed since that they say little: more than a sixteenth of what was left, and than const.late_ms.
for _, t in ipairs(head.terms) do
  local deadline = t.deadline_at_ms or now + t.left_ms
  local left = deadline - now
  t.mode, t.slack_ms, t.late = t.mode or 'new', left - t.reserve_ms, t.left_ms - left > math.max(const.late_ms, t.left_ms / 16)
  t.deadline, t.deadline_int, t.reserve_int = deadline, int(deadline), int(t.reserve_ms)
  t.urgency, t.ttl, t.keep = int(deadline - t.reserve_ms), int(left + head.record_extra_ms), left + head.keep_ms
end

-- what is booked under a name: spent today, and reserved
local spent_today = spent_key(now)
local function booked(field)
  return tonumber(redis.call('HGET', spent_today, field) or '0'), tonumber(redis.call('HGET', P .. ':budget:reserved', field) or '0')
end

-- Whether a producer's rate allows this submission, and how far ahead of it the producer is in microseconds. One that is
-- allowed is counted.
local function in_rate(quota, producer)
  local key, now_us = P .. ':rate:' .. producer, now * 1000
  local used_until = math.max(tonumber(redis.call('GET', key) or '0'), now_us)
  local ahead = used_until - now_us
  if ahead > quota.tolerance_us then return false, ahead end
  local next_us = used_until + quota.interval_us
  redis.call('SET', key, int(next_us), 'PX', int(math.ceil((next_us - now_us) / 1000)))
  return true, ahead
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
      t.left_ms - t.reserve_ms, need, age, wait)
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

local newest, newest_ttl = {}, 0 -- the admitted jobs by producer
local out, told = { now, 'ok', pools.paid.capacity, pools.free.capacity }, 4 -- the reply, and how much of it is there
local revoked = {}

-- A job on its way through here is a table o: job and t (its terms) are what the head says of it, spec and text what is
-- kept of it. mode is what is to be done with it, at first that of its terms:
--   new   a submission: it is put on record if a pool takes it
--   miss  one without slack: a miss is booked, nothing is offered
--   again a job on record that needs another pool: claimed, held under a fence, or waiting
-- and in the end, where nothing is to be done: bound, gone, late, over or fenced. took is what is said of it: the path
-- that took it, '' for none, or why it was not offered.

-- A key whose job is off the record names nothing any more.
local function look_up_key(o)
  local job = o.job
  if not job.key then return end
  local bound = redis.call('GET', P .. ':idem:' .. job.key)
  if not bound then return end
  local hash, id = string.sub(bound, 1, #job.hash), string.sub(bound, #job.hash + 2)
  if redis.call('EXISTS', P .. ':job:' .. id) == 0 then return end
  o.mode, o.bound_to, o.took = 'bound', id, hash == job.hash and 'same' or 'conflict'
end

local function look_up_batch(o)
  if o.job.batch and o.took == '' and batch_of(o.job.batch).cancelled then o.mode, o.took = 'gone', 'gone' end
end

-- a submission whose numbers are too old is for the caller to work out anew
local function look_up_age(o)
  if o.t.late and o.mode == 'new' then o.mode, o.took = 'late', 'late' end
end

-- what is booked already under the budgets that bind the job, and whether it still fits
local function look_up_budget(o)
  local budget = o.t.budget
  if not budget then return end
  o.booked, o.fits = {}, true
  local most = { budget.most_of_producer, budget.most_of_class }
  for i, field in ipairs(budget_fields(o.job.class, o.job.producer)) do
    local spent, reserved = booked(field)
    if most[i] and spent + reserved > most[i] then o.fits = false end
    o.booked[2 * i - 1], o.booked[2 * i] = spent, reserved
  end
end

-- hold a submission to what its producer may submit
local function look_up_quota(o)
  local quota, producer = o.t.quota, o.job.producer
  o.rate_ahead, o.live = 0, 0
  if not quota or (o.mode ~= 'new' and o.mode ~= 'miss') then return end
  if quota.interval_us > 0 then
    local fits
    fits, o.rate_ahead = in_rate(quota, producer)
    if not fits then o.mode = 'over' end
  end
  if quota.max_in_flight > 0 and o.mode == 'new' then
    write_order(live_key('paid', producer))
    write_order(live_key('free', producer))
    o.live = live_jobs('paid', producer, now) + live_jobs('free', producer, now)
    if o.live >= quota.max_in_flight then o.mode = 'over' end
  end
end

-- a job on record must still be what the caller thinks it is
local function look_up_record(o)
  if o.mode ~= 'again' then return end
  local r = record(o.job.id)
  local is = r and r.path == o.t.from and (not o.t.fence and r.state == 'waiting' or
      r.state == 'running' and r.fence == o.t.fence and r.cancel ~= '1')
  if is then o.held = r else o.mode = 'fenced' end
end

-- What is said of a job: took, 1 if it needs a ticket (a slot is free that no job waits for), the id of the job that its
-- key is bound to; per pool waiting, running, age, age of the class, jobs ahead, broken rung, waiting jobs on it, and with
-- levels the rung on which the producer has its share and its jobs there; where budgets bind the job, what was spent and
-- reserved of its producer's, then of its class's; where its producer is limited, how far ahead of its rate it is in
-- microseconds and its unfinished jobs.
local function begin_reply(o)
  o.said = told + 1
  told = told + 3
  for _, name in ipairs(pool_names) do
    local p = pools[name]
    p.said = told
    out[told + 1], out[told + 2], out[told + 3], out[told + 4] = p.waiting, p.running, p.age, class_age(p, o.job.class)
    for i = told + 5, told + p.width do out[i] = 0 end
    told = told + p.width
  end
end

local function end_reply(o)
  out[o.said], out[o.said + 1], out[o.said + 2] = o.took, o.ticket, o.bound_to
  if o.booked then
    for i = 1, 4 do out[told + i] = o.booked[i] end
    told = told + 4
  end
  if o.t.quota then
    out[told + 1], out[told + 2] = int(o.rate_ahead), o.live
    told = told + 2
  end
end

local function within(n, max) return not max or n < max end

-- whether a pool takes the job at a place of its terms; then also the need and the wait that go on its record
local function fits(o, p, place)
  local s, need, wait = p.said, place.need_ms or 0, 0
  if place.plus_age then need = need + p.age end
  local ok = p.capacity > 0 and within(p.waiting + p.running, place.max_in_flight) and
      within(p.age, place.max_age_ms) and within(class_age(p, o.job.class), place.max_class_age_ms)
  if place.first then
    out[s + 5] = ahead_of(p, o.t.slack_ms)
    out[s + 6], out[s + 7] = breaks(p, place.first, place.first_max or 0)
    ok = ok and out[s + 6] == 0
    if ok then
      local i = rung_for(p, p.running + out[s + 5])
      wait, need = rung_at(p, i).wait, rung_at(p, i).at
      if need < 0 then need = i > 1 and rung_at(p, i - 1).at or 0 end
    end
    if o.mode == 'new' then
      if p.levels ~= '' and ok then
        out[s + 8], out[s + 9] = over_share(p, o.job.producer, place.first)
        ok = out[s + 8] == 0
      end
      if not ok and p.capacity > 0 then o.refused[#o.refused + 1] = p.name end
    end
  end
  if p.name == 'paid' and o.fits == false then ok = false end
  return ok, need, wait
end

-- put a submission on record, with its place in the pool's order
local function admit(o, p, need, wait)
  local job, t, path = o.job, o.t, p.name
  local id, class, producer = job.id, job.class, job.producer
  local seq = next_seq()
  redis.call('HSET', P .. ':job:' .. id, 'spec', o.spec, 'state', 'waiting', 'path', path,
    'promise', promise_of(t, need, p.age, wait, seq, class, producer, job.batch and job.batch .. ' ' .. job.line))
  redis.call('PEXPIRE', P .. ':job:' .. id, t.ttl)
  redis.call('SET', P .. ':text:' .. id, o.text, 'PX', t.ttl)
  -- a refused submission does not bind its key, and a bound one outlives the record of a job that nobody ends for long
  -- after its deadline
  if job.key then
    redis.call('SET', P .. ':idem:' .. job.key, job.hash .. '|' .. id, 'PX', int(t.keep + head.record_extra_ms))
  end
  local live = live_key(path, producer)
  put_later(P .. ':waiting:' .. path, t.urgency, member_of(seq, class, id))
  put_later(P .. ':age:' .. path, now_int, id)
  put_later(P .. ':age:' .. path .. ':' .. class, now_int, id)
  put_later(live, t.urgency, id)
  alive[live] = true
  p.admitted = p.admitted + 1
  if job.batch then
    local b = batch_of(job.batch)
    local l, n = b.lines, b.told
    l[n + 1], l[n + 2], l[n + 3], b.told = job.line, job.at or 0, 'J' .. path .. '|' .. id, n + 3
    b.due, b.ttl = math.max(b.due, t.deadline), math.max(b.ttl, t.keep)
  end
  if not newest[producer] then newest[producer] = {} end
  table.insert(newest[producer], id)
  newest_ttl = math.max(newest_ttl, t.keep)
end

-- take a job on record over into the pool's order, under the deadline that it has
local function take_over(o, p)
  local id, held, path = o.job.id, o.held, p.name
  local urgency = tonumber(held.deadline) - tonumber(held.reserve)
  unreserve(id)
  drop_live(held.path, held.producer or '', id)
  add_live(path, held.producer or '', id, urgency)
  if held.state == 'waiting' then unqueue(held.path, held.member, id, held.class) else release(held.path, id) end
  redis.call('HSET', P .. ':job:' .. id, 'state', 'waiting', 'path', path, 'queue_wait', '-1')
  redis.call('HINCRBY', P .. ':job:' .. id, 'fence', 1)
  enqueue(path, held.member, id, o.job.class, urgency, tonumber(held.accepted))
  bump('moved:' .. held.path .. ':' .. path, 1)
  pools.paid.ahead_of, pools.free.ahead_of = nil, nil
end

-- the pool has one job more
local function count_in(o, p)
  local slack = o.t.slack_ms
  -- with as many waiting as slots are free, there are tickets enough
  if p.waiting < p.free then o.ticket = 1 end
  p.waiting = p.waiting + 1
  for _, r in pairs(p.rungs) do
    if r.count and (r.at < 0 or r.at > slack) then r.count = r.count + 1 end
  end
  if p.ahead_of and p.ahead_of >= slack then p.ahead = p.ahead + 1 end
end

-- offer the job to the pools of its terms, until one takes it
local function offer(o)
  if o.took ~= '' or (o.mode ~= 'new' and not o.held) then return end
  for _, place in ipairs(o.t.places) do
    local p = pools[place.path]
    local ok, need, wait = fits(o, p, place)
    if ok then
      if place.first and o.mode == 'new' then want(p.name, o.job.producer, 1) end
      o.took = p.name
      if o.held then take_over(o, p) else admit(o, p, need, wait) end
      if p.name == 'paid' and o.booked then set_aside(o.job.id, o.job.class, o.job.producer, o.t.budget.cost_micro) end
      return count_in(o, p)
    end
  end
  for _, path in ipairs(o.refused) do want(path, o.job.producer, 1) end
  if o.t.revoke and o.held then
    end_job(o.job.id, o.held, now, { outcome = 'revoked', cause = 'capacity_lost', reason = 'capacity_lost', backend = '',
      first_byte_ms = '-1', details = '{}', keep_ms = int(head.keep_ms), books = books })
    revoked[#revoked + 1] = o.job.id
  end
end

local function book_late_arrival(o)
  local id, class, producer = o.job.id, o.job.class, o.job.producer
  book_miss('reject', class, producer, '', 'arrived_without_slack', books, {
    'job_id', id, 'path', 'reject', 'class', class, 'producer', producer, 'outcome', 'expired',
    'cause', 'arrived_without_slack', 'at_ms', now_int, 'deadline_at_ms', o.t.deadline_int, 'admission',
    string.format('{"slack_ms":%.0f,"queue_age_ms":%.0f}', o.t.left_ms - o.t.reserve_ms, math.max(pools.paid.age, pools.free.age)),
    'queue_wait_ms', '0', 'first_byte_ms', '-1', 'late_by_ms', '0' })
end

for i, job in ipairs(head.jobs) do
  local t = head.terms[job.terms]
  local o = { job = job, t = t, mode = t.mode, spec = ARGV[2 * i + 5], text = ARGV[2 * i + 6],
    took = '', bound_to = '', ticket = 0, refused = {} }
  look_up_budget(o)
  look_up_key(o)
  look_up_batch(o)
  look_up_age(o)
  look_up_quota(o)
  look_up_record(o)
  begin_reply(o)
  offer(o)
  if o.mode == 'miss' then book_late_arrival(o) end
  end_reply(o)
end
for key in pairs(put_off) do write_order(key) end
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
out[told + 1] = #revoked
for _, id in ipairs(revoked) do tell_end(out, id) end
return out
