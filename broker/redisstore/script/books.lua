-- Read, at one instant, what the books are held against. Nothing is written.
-- ARGV: how long past its due instant an open row is no news, in ms; how many reservations to look at, 0: leave budgets
-- out.
-- Returns {now, per pool waiting and running, per ledger rows, first id and last id, number of open rows, 1 if there is an archive, number of open rows past that, then two lists
-- after their length: the totals, and the sums of the minutes that the last rows are in (minute, length of its sums,
-- sums, length of its producers, producers)}; with budgets then the number of reservations, 1 if they were looked at, and
-- after their lengths what is reserved, spent today and summed over the reservations, by field, and jobs that hold one
-- without being unfinished in paid. Rows booked later are not in any of them.
local now = now_ms()
local out = { now }
local function add(x) out[#out + 1] = x end
local function list(l)
  add(#l)
  for _, x in ipairs(l) do add(x) end
end
for _, pool in ipairs({ 'paid', 'free' }) do
  add(redis.call('ZCARD', P .. ':waiting:' .. pool))
  add(redis.call('ZCARD', P .. ':running:' .. pool))
end
local minutes = {}
for _, ledger in ipairs({ 'spend', 'miss' }) do
  local key = P .. ':ledger:' .. ledger
  local first, last = redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1], redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  add(redis.call('XLEN', key))
  add(first and first[1] or '')
  add(last and last[1] or '')
  if last then minutes[int(math.floor(tonumber(string.match(last[1], '^%d+')) / 60000))] = true end
end
add(redis.call('HLEN', P .. ':spend:open'))
add(redis.call('EXISTS', P .. ':archive'))
add(redis.call('ZCOUNT', P .. ':spend:due', '-inf', int(now - tonumber(ARGV[1]))))
list(redis.call('HGETALL', P .. ':totals'))
local n = 0
for _ in pairs(minutes) do n = n + 1 end
add(n)
for minute in pairs(minutes) do
  add(minute)
  list(redis.call('HGETALL', P .. ':rollup:' .. minute))
  list(redis.call('SMEMBERS', P .. ':rollup:' .. minute .. ':producers'))
end
local most = tonumber(ARGV[2])
if most == 0 then return out end
local held, sums, orphans = redis.call('HLEN', P .. ':budget:held'), {}, {}
add(held)
add(held <= most and 1 or 0)
list(redis.call('HGETALL', P .. ':budget:reserved'))
list(redis.call('HGETALL', spent_key(now)))
if held <= most then
  for _, id in ipairs(redis.call('HKEYS', P .. ':budget:held')) do
    local h = held_for(id)
    if h then
      for _, f in ipairs(budget_fields(h.class, h.producer)) do sums[f] = (sums[f] or 0) + h.ahead + h.open end
    end
    local r = redis.call('HMGET', P .. ':job:' .. id, 'state', 'path')
    if not h or (r[1] ~= 'waiting' and r[1] ~= 'running') or r[2] ~= 'paid' then
      if #orphans < 100 then orphans[#orphans + 1] = id end
    end
  end
end
local flat = {}
for f, n in pairs(sums) do
  flat[#flat + 1] = f
  flat[#flat + 1] = int(n)
end
list(flat)
list(orphans)
return out
