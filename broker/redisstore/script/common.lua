-- Shared by every script. KEYS[1] is the key prefix with its hash tag, so that
-- all keys of a deployment live in one slot:
--
--   P:layout            string  which programs may work here; see layout.lua
--   P:shards            string  how many shards the deployment has, where it is more than one; see shards.lua
--   P:job:<id>          hash    one job's record: spec, what was submitted; promise, what was settled at its admission (see
--                               fields); state, path, and what becomes of it
--   P:text:<id>         string  its input text, gone with the outcome
--   P:answer:<id>       string  its answer, kept for the result's lifetime
--   P:waiting:<pool>    zset    waiting jobs by urgency (deadline - reserve), then arrival
--   P:running:<pool>    zset    claimed jobs by the instant their lease lapses
--   P:started:<pool>    zset    claimed jobs by the instant of the claim
--   P:silent:<pool>     zset    the same, only those that have had no answer text yet
--   P:live:<pool>:<producer>  zset  a producer's unfinished jobs by urgency
--   P:demand:<pool>     hash    producer -> "<recent submissions, fading>:<since when they fade>:<first of them>"
--   P:age:<pool>        zset    waiting jobs by the instant they were accepted
--   P:age:<pool>:<cls>  zset    the same for one class
--   P:workers:<pool>    zset    "<worker>|<slots>" by the instant they are forgotten
--   P:flags             hash    flag or flag@class -> value, who, why, until
--   P:flags:version     string  counts the changes of P:flags
--   P:audit             stream  the changes
--   P:fleet             zset    worker processes by the instant they are forgotten
--   P:fleet:<worker>    string  the states of a worker's backends
--   P:backends:out      hash    backends an operator has taken out -> why, who, when
--   P:backends:held:<b> string  why a backend is to be left alone; lives as long as that
--   P:spend:open        hash    "<job>/<attempt>" -> open spend row
--   P:spend:due         zset    open spend rows by the instant their attempt must be over
--   P:ledger:spend      stream  settled spend rows
--   P:ledger:miss       stream  miss rows
--   P:rollup:<minute>   hash    sums of the rows of both ledgers that were booked in a minute
--   P:rollup:<minute>:producers  set  the producers that have sums of their own there
--   P:archive           hash    how far the archive is; lives while an archive is configured
--   P:totals            hash    running sums
--   P:idem:<key>        string  hash of a submission's body | its job
--   P:seq               string  arrival counter
--   P:recent, P:recent:<producer>  stream  ids of the jobs admitted last, those of one step in one entry
--   P:batch:<id>        hash    a batch: producer, when, lines by verdict (said:*), jobs by outcome (ended:*)
--   P:batch:<id>:order  zset    its lines' names by their place
--   P:batch:<id>:lines  hash    name -> "J<path>|<job>" for a job, "R<reason>|<document>" for what was said otherwise
--   P:batch:<id>:ended  list    names of the lines whose jobs have ended, in that order
--   P:batches, P:batches:<producer>  stream  ids of the newest batches, of all and of one producer
--   P:ended, P:news, P:cancel   channels  ids of jobs that ended, were claimed or began to answer, were taken back while running;
--                               a blank between those of one notice
--   {<prefix>-<pool>}:tickets   channel  says that tickets were put into asynq's queue of a pool
--   P:relay:<replica>   channel answer text on its way to the API replica that asked for it
--   P:latency:<series>:<slice>  hash  counts of measured calls by bucket
--   P:swept             string  when somebody last looked for lapsed leases, by which a store that stood still is told
--   P:strays            hash    when somebody last looked for strays, and where the next look begins
--   P:back              string  when it was last found to have stood still
--   P:released:<pool>   string  counts the claims that came to an end
--   P:budget:held       hash    job that was admitted to paid under a budget -> what is kept for it
--                               "<for attempts to come>:<for open attempts>:<class>:<producer>", in micro-units
--   P:budget:reserved   hash    sums of that: "c:<class>", "p:<producer>"
--   P:budget:spent:<day>  hash  the same fields -> cost booked on that day (of 86,400,000 ms since 1970)
--   P:webhooks:<producer>  zset  jobs whose end is yet to be told to its webhook, by the instant of the next attempt
--   P:webhook:<id>      hash    such a job's record as it ended, and told_attempts; lives as long as it may be told
--   P:rate:<producer>   string  until when the producer's submissions have used up its rate, in microseconds
local P = KEYS[1]

local function int(x) return string.format('%.0f', x) end

-- A full Redis refuses a script's first write that may need memory, but none
-- after a write that needs none. Scripts that carry admitted jobs to their end
-- call this first: only admission is to be refused.
local function never_refused() redis.call('DEL', P .. ':never_refused') end

local function now_ms()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

-- Writes that many jobs share. Between share_writes() and write_shared() sums, places in orders, notices and texts that are
-- dropped are kept here, so that a script which works on many jobs writes each key once. Nothing may read them meanwhile.
local sharing = false
local put_off = {} -- by key: sums and ttl of a hash; puts and takes of an order, and what counts the takes
local notices, dropped = {}, {}

local function put_off_at(key)
  local of = put_off[key]
  if not of then
    of = { sums = {}, puts = {}, takes = {} }
    put_off[key] = of
  end
  return of
end

local function add(key, field, n)
  if not sharing then return redis.call('HINCRBY', key, field, int(n)) end
  local sums = put_off_at(key).sums
  sums[field] = (sums[field] or 0) + n
end

local function sums_live(key, ttl)
  if not sharing then return redis.call('PEXPIRE', key, ttl) end
  put_off_at(key).ttl = ttl
end

-- give a member its place in an order, when that is written
local function put_later(key, score, member)
  local puts = put_off_at(key).puts
  puts[#puts + 1] = score
  puts[#puts + 1] = member
end

local function put(key, score, member)
  if not sharing then return redis.call('ZADD', key, score, member) end
  put_later(key, score, member)
end

-- Take a member out of an order. If it was there, a key is counted up, where one is named.
local function take(key, member, counter)
  if sharing then
    local of = put_off_at(key)
    of.takes[#of.takes + 1], of.counter = member, counter
  elseif redis.call('ZREM', key, member) == 1 and counter then
    redis.call('INCR', counter)
  end
end

-- write what was put off of an order
local function write_order(key)
  local of = put_off[key]
  if not of then return end
  if #of.takes > 0 then
    local n = redis.call('ZREM', key, unpack(of.takes))
    if of.counter and n > 0 then redis.call('INCRBY', of.counter, n) end
    of.takes = {}
  end
  if #of.puts > 0 then
    for i = 1, #of.puts, 1000 do redis.call('ZADD', key, unpack(of.puts, i, math.min(i + 999, #of.puts))) end
    of.puts = {}
  end
end

-- tell subscribers of a job; ids that are told together have a blank between them
local function tell(channel, id)
  if not sharing then return redis.call('PUBLISH', channel, id) end
  notices[channel] = notices[channel] and notices[channel] .. ' ' .. id or id
end

local function drop_text(id)
  if not sharing then return redis.call('UNLINK', P .. ':text:' .. id) end
  dropped[#dropped + 1] = P .. ':text:' .. id
end

local function share_writes() sharing = true end

-- A key that cannot be written costs no other: the check of the books and the search for strays find it.
local function write_shared()
  sharing = false
  for key, of in pairs(put_off) do
    pcall(write_order, key)
    for field, n in pairs(of.sums) do redis.pcall('HINCRBY', key, field, int(n)) end
    if of.ttl then redis.pcall('PEXPIRE', key, of.ttl) end
  end
  if #dropped > 0 then redis.call('UNLINK', unpack(dropped)) end
  for channel, ids in pairs(notices) do redis.call('PUBLISH', channel, ids) end
end

local function bump(field, n) add(P .. ':totals', field, n) end

-- once is what f returns, asked once in a script for each name
local asked = {}
local function once(name, f)
  if asked[name] == nil then asked[name] = f() end
  return asked[name]
end

-- When a lease of so many ms from now lapses: never later than close_by_ms after the job's deadline, or that long
-- from now if the deadline is past. A job whose worker is gone is closed soon after its deadline, however long leases are.
local function lapse(now, lease, deadline, close_by)
  return int(math.min(now + lease, math.max(deadline, now) + close_by))
end

-- slots of the pool's workers that live at now
local function live_slots(pool, now)
  local sum = 0
  for _, m in ipairs(redis.call('ZRANGEBYSCORE', P .. ':workers:' .. pool, '(' .. int(now), '+inf')) do
    sum = sum + tonumber(string.match(m, '|(%d+)$') or '0')
  end
  return sum
end

-- how long the oldest member of an age set has waited
local function age_of(key, now)
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if not first[2] then return 0 end
  return math.max(0, now - tonumber(first[2]))
end

-- A member of the waiting order is "<arrival, 16 digits>:<class>:<id>": equal
-- urgencies go in order of arrival, and a job whose record is gone can still be
-- taken out of its class's ages.
local function member_of(seq, class, id)
  return string.rep('0', 16 - #seq) .. seq .. ':' .. class .. ':' .. id
end
local function split(member)
  return string.match(member, '^%d+:([^:]*):(.*)$')
end

-- A record's fields, however much of them is there. What never changes of an admitted job is one field, for each costs:
--   promise  {"v":<layout of the program that wrote it>,"accepted_at_ms","deadline_at_ms","reserve_ms","seq":<its arrival>,
--            "class","producer","batch":"<batch> <line>","admission":{"slack_ms","need_ms","queue_age_ms","predicted_wait_ms"}}
-- and is given here as accepted, deadline, reserve, member, class, producer, batch and admission. Programs of layout 2
-- called the two instants accepted_ms and deadline_ms.
local function fields(id)
  local flat = redis.call('HGETALL', P .. ':job:' .. id)
  if #flat == 0 then return nil end
  local r = { flat = flat }
  for i = 1, #flat, 2 do r[flat[i]] = flat[i + 1] end
  local ok, p = pcall(cjson.decode, r.promise or '')
  if not ok or type(p) ~= 'table' or type(p.class) ~= 'string' or not tonumber(p.seq) then return r end
  local function whole(x) return tonumber(x) and int(tonumber(x)) end
  local function text(x) return type(x) == 'string' and x or nil end
  r.accepted, r.deadline = whole(p.accepted_at_ms or p.accepted_ms), whole(p.deadline_at_ms or p.deadline_ms)
  r.reserve = whole(p.reserve_ms)
  r.member, r.class, r.producer = member_of(whole(p.seq), p.class, id), p.class, text(p.producer)
  r.batch, r.admission = text(p.batch), string.match(r.promise, '"admission":(%b{})')
  return r
end

-- A record that can be worked with. One that cannot is none: whoever meets it sets the job aside.
local function record(id)
  local r = fields(id)
  if not (r and r.path and r.class and r.member and r.spec and tonumber(r.accepted) and tonumber(r.deadline) and tonumber(r.reserve)) then
    return nil
  end
  for _, name in ipairs({ 'fence', 'offers', 'attempts', 'queue_wait' }) do
    if r[name] and not tonumber(r[name]) then return nil end
  end
  return r
end

-- take a job out of the waiting order
local function unqueue(pool, member, id, class)
  take(P .. ':waiting:' .. pool, member)
  take(P .. ':age:' .. pool, id)
  take(P .. ':age:' .. pool .. ':' .. class, id)
end

-- put a job into the waiting order, under the place it was given at admission
local function enqueue(pool, member, id, class, urgency, accepted)
  redis.call('ZADD', P .. ':waiting:' .. pool, int(urgency), member)
  redis.call('ZADD', P .. ':age:' .. pool, int(accepted), id)
  redis.call('ZADD', P .. ':age:' .. pool .. ':' .. class, int(accepted), id)
end

-- end a claim; a job that was not claimed frees no worker
local function release(pool, id)
  take(P .. ':started:' .. pool, id)
  take(P .. ':silent:' .. pool, id)
  take(P .. ':running:' .. pool, id, P .. ':released:' .. pool)
end

local function released(pool)
  return tonumber(redis.call('GET', P .. ':released:' .. pool) or '0')
end

-- Scripts that book are told how the books are kept, as "<rows>:<ms>": the rows
-- of a ledger that stay, and how long the sums of a minute do. Where there is an
-- archive nothing is dropped here: it trims what it has taken.
local function append(ledger, books, ...)
  local key = P .. ':ledger:' .. ledger
  local archived = once('archive', function() return redis.call('EXISTS', P .. ':archive') == 1 end)
  if archived then return redis.call('XADD', key, '*', ...) end
  return redis.call('XADD', key, 'MAXLEN', '~', string.match(books, '^%d+'), '*', ...)
end

-- how many producers have sums of their own in a minute; the others share one
-- name, so that a name made up for each job does not fill the memory
local most_producers = 200

-- add a row to the sums of its minute, which is that of its id. sums: names and
-- numbers in turn.
local function roll_up(id, books, labels, producer, sums)
  local minute = int(math.floor(tonumber(string.match(id, '^%d+')) / 60000))
  local key, ttl = P .. ':rollup:' .. minute, string.match(books, '%d+$')
  producer = once(key .. ':' .. producer, function()
    local names = key .. ':producers'
    if redis.call('SISMEMBER', names, producer) == 1 then return producer end
    if redis.call('SCARD', names) >= most_producers then return 'other' end
    redis.call('SADD', names, producer)
    redis.call('PEXPIRE', names, ttl)
    return producer
  end)
  for i = 1, #sums, 2 do
    if sums[i + 1] ~= 0 then
      add(key, sums[i] .. ':' .. labels .. ':' .. producer, sums[i + 1])
    end
  end
  sums_live(key, ttl)
end

-- A producer's unfinished jobs. One whose record was lost, so that nobody knows
-- whose it is, is forgotten an hour after its first byte was due.
local function live_key(pool, producer) return P .. ':live:' .. pool .. ':' .. producer end
local live_after, live_ttl = 3600000, 8 * 86400000

local function add_live(pool, producer, id, urgency)
  redis.call('ZADD', live_key(pool, producer), int(urgency), id)
  redis.call('PEXPIRE', live_key(pool, producer), live_ttl)
  redis.call('ZREMRANGEBYSCORE', live_key(pool, producer), '-inf', int(now_ms() - live_after))
end

local function drop_live(pool, producer, id) take(live_key(pool, producer), id) end

-- How many there are, or how many of them are due before an instant. It writes
-- nothing: a write that needs no memory, ahead of an admission's, would have a
-- full Redis let that in.
local function live_jobs(pool, producer, now, before)
  return redis.call('ZCOUNT', live_key(pool, producer), '(' .. int(now - live_after), before or '+inf')
end

-- whether an unfinished job, of which r is on record, is not among its producer's, or not in its place
local function unlisted(id, r, now)
  if (r.state ~= 'waiting' and r.state ~= 'running') or not (r.path and tonumber(r.deadline) and tonumber(r.reserve)) then
    return false
  end
  local urgency = tonumber(r.deadline) - tonumber(r.reserve)
  if urgency < now - live_after then return false end -- forgotten, as it is to be
  return tonumber(redis.call('ZSCORE', live_key(r.path, r.producer or ''), id) or '-1') ~= urgency
end

-- How much a producer wants of a pool: submissions that it took or refused,
-- fading with const.demand_fades_ms. One that has not been heard of for demand_kept is
-- idle. Beyond most_demands the name that wants least gives way, so that many who
-- came once do not keep out one who works; a newcomer who wants no more is not
-- noted, and held to the others' level. What cannot be noted, with Redis full, is
-- no reason not to answer.
local demand_kept, most_demands = 300000, 200

local function demand_of(v)
  local n, at, first = string.match(v or '', '^([%d.e+-]+):(%d+):(%d+)$')
  return tonumber(n or '0'), tonumber(at or '0'), tonumber(first or '0')
end

-- what is left of a demand that was noted at an instant
local function faded(n, at, now) return n * math.exp(-math.max(0, now - at) / const.demand_fades_ms) end

local function add_demand(pool, producer, more, now)
  local key = P .. ':demand:' .. pool
  local known = redis.call('HGET', key, producer)
  if not known and redis.call('HLEN', key) >= most_demands then
    local all, least, least_n = redis.call('HGETALL', key), nil, more
    for i = 1, #all, 2 do
      local n, at = demand_of(all[i + 1])
      n = faded(n, at, now)
      if now - at > demand_kept then
        redis.call('HDEL', key, all[i])
      elseif n < least_n then
        least, least_n = all[i], n
      end
    end
    if redis.call('HLEN', key) >= most_demands then
      if not least then return end
      redis.call('HDEL', key, least)
    end
  end
  local n, at, first = demand_of(known)
  if now - at > demand_kept then n, first = 0, now end
  n = faded(n, at, now) + more
  redis.pcall('HSET', key, producer, string.format('%.6f', n) .. ':' .. int(now) .. ':' .. int(first))
  redis.call('PEXPIRE', key, demand_kept)
end

-- Budgets. What a job may yet cost is reserved under its class and its producer
-- while the job is unfinished in paid; what its attempts did cost is counted
-- under the same names on the day it is booked.
local function budget_fields(class, producer) return { 'p:' .. producer, 'c:' .. class } end

local function add_reserved(class, producer, n)
  if n == 0 then return end
  for _, f in ipairs(budget_fields(class, producer)) do
    if redis.call('HINCRBY', P .. ':budget:reserved', f, int(n)) == 0 then
      redis.call('HDEL', P .. ':budget:reserved', f)
    end
  end
end

local any_held -- nil: not known
local function held_for(id)
  if any_held == nil then any_held = redis.call('EXISTS', P .. ':budget:held') == 1 end
  if not any_held then return nil end
  local v = redis.call('HGET', P .. ':budget:held', id)
  if not v then return nil end
  local ahead, open, class, producer = string.match(v, '^(%d+):(%d+):([^:]*):(.*)$')
  if not ahead then return nil end -- nobody knows under which names
  return { ahead = tonumber(ahead), open = tonumber(open), class = class, producer = producer }
end

local function hold(id, h)
  any_held = true
  redis.call('HSET', P .. ':budget:held', id, int(h.ahead) .. ':' .. int(h.open) .. ':' .. h.class .. ':' .. h.producer)
end

local function set_aside(id, class, producer, cost)
  hold(id, { ahead = cost, open = 0, class = class, producer = producer })
  add_reserved(class, producer, cost)
end

-- give back what is still kept for a job: it has ended, or leaves paid
local function unreserve(id)
  local h = held_for(id)
  if any_held then redis.call('HDEL', P .. ':budget:held', id) end
  if not h then return end
  add_reserved(h.class, h.producer, -(h.ahead + h.open))
end

-- An attempt begins: part of what is kept for the job is now kept for it. What
-- the job has no more of (its workers were lost, or the price has risen) is
-- added: a promise outlives a budget.
local function reserve_attempt(id, cost)
  local h = held_for(id)
  if not h then return end
  if cost > h.ahead then
    add_reserved(h.class, h.producer, cost - h.ahead)
    h.ahead = cost
  end
  h.ahead, h.open = h.ahead - cost, h.open + cost
  hold(id, h)
end

-- an attempt is settled: what was kept for it becomes what it cost
local function settle_reserved(id, cost)
  local h = held_for(id)
  if not h then return end
  local n = math.min(cost, h.open)
  h.open = h.open - n
  hold(id, h)
  add_reserved(h.class, h.producer, -n)
end

-- how many names a day has sums for at most; those that hold a reservation have
-- theirs whatever their number
local most_spenders = 1000
local spent_ttl = 3 * 86400000

local function spent_key(ms) return P .. ':budget:spent:' .. int(math.floor(ms / 86400000)) end

local function count_spent(at_ms, class, producer, cost)
  if cost <= 0 then return end
  local key = spent_key(at_ms)
  for _, f in ipairs(budget_fields(class, producer)) do
    local counts = once(key .. ':' .. f, function()
      local more = redis.call('HLEN', key) < most_spenders or redis.call('HEXISTS', key, f) == 1 or
        redis.call('HEXISTS', P .. ':budget:reserved', f) == 1
      if more then redis.call('HINCRBY', key, f, 0) end -- it is there for the next name to see
      return more
    end)
    if counts then add(key, f, cost) end
  end
  sums_live(key, spent_ttl)
end

-- An attempt to settle is that many arguments from ARGV[i].
local function attempt_at(i)
  return {
    key = ARGV[i], row = ARGV[i + 1], path = ARGV[i + 2], priced = ARGV[i + 3] == '1',
    input = tonumber(ARGV[i + 4]), output = tonumber(ARGV[i + 5]), cost = tonumber(ARGV[i + 6]),
    currency = ARGV[i + 7], known = ARGV[i + 8], class = ARGV[i + 9], producer = ARGV[i + 10],
    backend = ARGV[i + 11], differs = ARGV[i + 12] == '1', largest = tonumber(ARGV[i + 13]) }
end

-- settle one attempt: true if its row was open. row is the whole settled row
-- as JSON; the rest feeds the sums.
local function settle(a, books)
  if redis.call('HDEL', P .. ':spend:open', a.key) == 0 then return false end
  take(P .. ':spend:due', a.key)
  local id = append('spend', books, 'row', a.row)
  local spent = 0
  if a.priced then spent = a.input + a.output end
  bump('attempts:' .. a.path, 1)
  bump('tokens:' .. a.path .. ':input', a.input)
  bump('tokens:' .. a.path .. ':output', a.output)
  if a.priced then bump('spend_tokens:' .. a.path, spent) end
  bump('cost_micro:' .. a.path .. ':' .. a.currency, a.cost)
  bump('known:' .. a.path .. ':' .. a.known, 1)
  if a.differs then bump('cost_difference:' .. a.backend, 1) end
  count_spent(tonumber(string.match(id, '^%d+')), a.class, a.producer, a.cost)
  settle_reserved(string.match(a.key, '^(.*)/'), a.largest)
  roll_up(id, books, a.path .. ':' .. a.class .. ':' .. a.backend, a.producer, {
    's:attempts', 1, 's:input', a.input, 's:output', a.output, 's:spent', spent,
    's:cost.' .. a.currency, a.cost, 's:known.' .. a.known, 1 })
  return true
end

-- settle what earlier holders of a job left open. Nobody knows what those
-- attempts cost: they stay charged at the largest possible. A row that cannot be
-- read is set aside as it is, at its place in the ledger.
local function settle_unknown_row(key, now, books)
  local open = redis.call('HGET', P .. ':spend:open', key)
  if not open then return end
  local ok, row = pcall(cjson.decode, open)
  if not (ok and type(row) == 'table' and row.path and row.backend and row.currency and row.class and tonumber(row.max_cost_micro)) then
    redis.call('HDEL', P .. ':spend:open', key)
    redis.call('ZREM', P .. ':spend:due', key)
    append('spend', books, 'row', open)
    return bump('set_aside:spend', 1)
  end
  local out = row.max_output_tokens or 0
  local input = row.max_input_tokens or 0
  row.known, row.result = 'unknown', 'lost'
  row.settled_at_ms, row.due_ms = now, nil
  row.input_tokens, row.output_tokens, row.cost_micro = input, out, row.max_cost_micro
  settle({ key = key, row = cjson.encode(row), path = row.path, priced = row.priced, input = input, output = out,
    cost = row.max_cost_micro, largest = row.max_cost_micro, currency = row.currency, known = 'unknown', class = row.class,
    producer = row.producer or '', backend = row.backend }, books)
end
local function settle_unknown(id, attempts, now, books)
  for n = 1, attempts do settle_unknown_row(id .. '/' .. n, now, books) end
end

-- book a miss. f: the row's fields as a flat list.
local function book_miss(path, class, producer, backend, cause, books, f)
  local id = append('miss', books, unpack(f))
  bump('miss:' .. path, 1)
  bump('miss_cause:' .. path .. ':' .. cause, 1)
  roll_up(id, books, path .. ':' .. class .. ':' .. backend, producer, { 'm:' .. cause, 1 })
end

-- the keys of a batch live at least that long from now, and all of them as long as the batch: those of its lines may be new
local function keep_batch(key, ttl)
  ttl = math.max(ttl, redis.call('PTTL', key))
  for _, part in ipairs({ '', ':order', ':lines', ':ended' }) do redis.call('PEXPIRE', key .. part, int(ttl)) end
end

-- Put down what came of lines: name, place and value of each in turn. A line that became a job is not unmade by what was
-- said to a later copy of it.
local function set_lines(batch, lines, ttl)
  local key = P .. ':batch:' .. batch
  local names, known, said, places, values, n = {}, {}, {}, {}, {}, #lines / 3
  if n == 0 then return end
  for i = 1, n do
    names[i] = lines[3 * i - 2]
    places[2 * i - 1], places[2 * i] = int(lines[3 * i - 1]), names[i]
  end
  -- lines that have no place yet have no value either
  if redis.call('ZADD', key .. ':order', 'NX', unpack(places)) < n then
    for i, old in ipairs(redis.call('HMGET', key .. ':lines', unpack(names))) do known[names[i]] = old end
  end
  local function count(value, by)
    local what = string.match(value, '^.([^|]*)')
    said[what] = (said[what] or 0) + by
  end
  local written = 0
  for i = 1, n do
    local name, value = names[i], lines[3 * i]
    local old = known[name]
    if not (old and string.sub(old, 1, 1) == 'J' and string.sub(value, 1, 1) ~= 'J') then
      if old then count(old, -1) end
      count(value, 1)
      values[written + 1], values[written + 2], written = name, value, written + 2
      known[name] = value
    end
  end
  if written > 0 then redis.call('HSET', key .. ':lines', unpack(values)) end
  for what, n in pairs(said) do
    if n ~= 0 then redis.call('HINCRBY', key, 'said:' .. what, n) end
  end
  keep_batch(key, ttl)
end

-- count the end of a job in its batch, if that is still on record
local function end_line(of, outcome)
  local batch, line = string.match(of, '^(%S+) (.*)$')
  local key = P .. ':batch:' .. batch
  if redis.call('EXISTS', key) == 0 then return end
  redis.call('HINCRBY', key, 'ended:' .. outcome, 1)
  if redis.call('RPUSH', key .. ':ended', line) == 1 then
    redis.call('PEXPIRE', key .. ':ended', redis.call('PTTL', key))
  end
end

-- list ids, with a blank between them, among the newest, of all and of one producer
local function list_newest(what, producer, ids, most, ttl)
  for _, key in ipairs({ P .. ':' .. what, P .. ':' .. what .. ':' .. producer }) do
    redis.call('XADD', key, 'MAXLEN', '~', most, '*', 'ids', ids)
    redis.call('PEXPIRE', key, int(ttl))
  end
end

-- A job's end that its producer's webhook is to be told of is put down in the step that ends it. For a day it is tried;
-- a target that is away for long costs no more than most_untold records of one producer.
local webhook_ttl, most_untold = 86400000, 50000

local function count_webhook(result, producer) bump('webhook:' .. result .. ':' .. producer, 1) end

local function to_be_told(id, r, now)
  if not string.find(r.spec or '', '"webhook":true', 1, true) then return end
  local producer = r.producer or ''
  local key = P .. ':webhooks:' .. producer
  if redis.call('ZCARD', key) >= most_untold then return count_webhook('dropped', producer) end
  redis.call('COPY', P .. ':job:' .. id, P .. ':webhook:' .. id)
  redis.call('PEXPIRE', P .. ':webhook:' .. id, webhook_ttl)
  redis.call('ZADD', key, int(now), id)
  redis.call('PEXPIRE', key, 2 * webhook_ttl) -- so that what lapsed untold is still counted
end

-- the one end of a job: outcome, miss row, sums, release and notice. o holds
-- outcome, cause, reason, backend, first_byte_ms, keep_ms, books, details, and
-- settled: how many of its attempts were settled just now. Returns the record as it
-- ended, for tell_end.
local function end_job(id, r, now, o)
  local pool = r.path
  if r.state == 'waiting' then unqueue(pool, r.member, id, r.class) else release(pool, id) end
  local attempts = tonumber(r.attempts or '0')
  if attempts ~= o.settled then settle_unknown(id, attempts, now, o.books) end
  unreserve(id)
  drop_live(pool, r.producer or '', id)
  local accepted, deadline = tonumber(r.accepted), tonumber(r.deadline)
  local waited = tonumber(r.queue_wait or '-1')
  if waited < 0 then waited = math.max(0, now - accepted) end
  local ended = { 'state', 'done', 'outcome', o.outcome, 'cause', o.cause,
    'reason', o.reason, 'backend', o.backend, 'first_byte', o.first_byte_ms, 'ended', int(now),
    'queue_wait', int(waited), 'details', o.details, 'answer_until', int(now + tonumber(o.keep_ms)) }
  redis.call('HSET', P .. ':job:' .. id, unpack(ended))
  redis.call('PEXPIRE', P .. ':job:' .. id, o.keep_ms)
  drop_text(id)
  bump('outcome:' .. pool .. ':' .. o.outcome, 1)
  if r.batch then end_line(r.batch, o.outcome) end
  to_be_told(id, r, now)
  if o.cause ~= '' then
    local due = deadline
    if o.cause == 'late_first_byte' or o.cause == 'expired_in_queue' then due = deadline - tonumber(r.reserve) end
    book_miss(pool, r.class, r.producer or '', o.backend, o.cause, o.books, {
      'job_id', id, 'path', pool, 'class', r.class, 'producer', r.producer or '', 'backend', o.backend, 'outcome', o.outcome,
      'cause', o.cause, 'at_ms', int(now), 'deadline_at_ms', r.deadline, 'admission', r.admission or '{}',
      'queue_wait_ms', int(waited), 'first_byte_ms', o.first_byte_ms, 'late_by_ms', int(math.max(0, now - due)) })
  end
  tell(P .. ':ended', id)
  for _, x in ipairs(ended) do r.flat[#r.flat + 1] = x end
  return r.flat
end

-- Add to a reply a job that ended here: its id, and its record as a list after its length, where a later value of a
-- field replaces an earlier one.
local function tell_end(out, id, flat)
  flat = flat or redis.call('HGETALL', P .. ':job:' .. id)
  local n = #out
  out[n + 1], out[n + 2] = id, #flat
  for i, x in ipairs(flat) do out[n + 2 + i] = x end
  return out
end

-- how many attempts are looked for when the record that counts them is gone
local most_attempts = 64

-- a promise whose record is gone: set aside with a miss row, so that the pool
-- goes on and the books still show it.
local function end_lost(pool, member, class, id, now, books)
  unqueue(pool, member, id, class)
  release(pool, id)
  settle_unknown(id, most_attempts, now, books)
  unreserve(id)
  drop_text(id)
  redis.call('UNLINK', P .. ':job:' .. id)
  bump('outcome:' .. pool .. ':failed', 1)
  book_miss(pool, class, '', '', 'record_lost', books, {
    'job_id', id, 'path', pool, 'class', class, 'producer', '', 'outcome', 'failed',
    'cause', 'record_lost', 'at_ms', int(now), 'deadline_at_ms', '0', 'admission', '{}',
    'queue_wait_ms', '0', 'first_byte_ms', '-1', 'late_by_ms', '0' })
  tell(P .. ':ended', id)
end
