-- Look at the next page of the deployment's keys for what no step leaves behind, and only something from outside can: a
-- key that was deleted, or evicted. ARGV: keep_ms, keys a page, every_ms (one page in that time, whoever asks).
--   an unfinished job without its place: it is put back, and goes on from there like any other
--   a record that is none and has no place, a text or an answer without a job: removed
--   an ended job, or a part of a batch, that would stay for ever: it is given its time to live
--   a budget's reservation whose job is not unfinished in paid: given back
-- Returns {now, places put back, strays removed}.
local now = now_ms()
local keep, page, every = ARGV[1], ARGV[2], tonumber(ARGV[3])
local placed, removed = 0, 0
local turn = P .. ':strays'
local last = redis.call('HMGET', turn, 'at', 'cursor')
if now - tonumber(last[1] or '0') < every and now >= tonumber(last[1] or '0') then return { now, 0, 0 } end

-- whether any pool has a place for it, for which a sweep or a claim will set it aside
local function has_place(id)
  for _, pool in ipairs({ 'paid', 'free' }) do
    if redis.call('ZSCORE', P .. ':age:' .. pool, id) or redis.call('ZSCORE', P .. ':running:' .. pool, id) then return true end
  end
  return false
end

local function drop(key)
  if redis.call('PTTL', key) == -1 then removed = removed + redis.call('DEL', key) end
end

local function give_end(key)
  if redis.call('PTTL', key) ~= -1 then return end
  redis.call('PEXPIRE', key, keep)
  removed = removed + 1
end

local function look_at_job(id)
  local key = P .. ':job:' .. id
  local r = record(id)
  if not r then
    if not has_place(id) then
      drop(P .. ':text:' .. id)
      drop(key)
    end
  elseif r.state == 'waiting' then
    if not redis.call('ZSCORE', P .. ':waiting:' .. r.path, r.member) or not redis.call('ZSCORE', P .. ':age:' .. r.path, id) then
      enqueue(r.path, r.member, id, r.class, tonumber(r.deadline) - tonumber(r.reserve), tonumber(r.accepted))
      placed = placed + 1
    end
  elseif r.state == 'running' then
    if not redis.call('ZSCORE', P .. ':running:' .. r.path, id) then
      redis.call('ZADD', P .. ':running:' .. r.path, int(now), id) -- its lease lapses now
      placed = placed + 1
    end
  else
    give_end(key)
  end
end

local function look_at_budget()
  local held = redis.call('HSCAN', P .. ':budget:held', 0, 'COUNT', page)[2]
  for i = 1, #held, 2 do
    local r = redis.call('HMGET', P .. ':job:' .. held[i], 'state', 'path')
    if (r[1] ~= 'waiting' and r[1] ~= 'running') or r[2] ~= 'paid' then
      unreserve(held[i])
      removed = removed + 1
    end
  end
end

local found = redis.call('SCAN', last[2] or '0', 'MATCH', P .. ':*', 'COUNT', page)
redis.call('HSET', turn, 'at', int(now), 'cursor', found[1])
for _, key in ipairs(found[2]) do
  local kind, id = string.match(string.sub(key, #P + 2), '^(%a+):(.*)$')
  if kind == 'job' then
    look_at_job(id)
  elseif kind == 'text' or kind == 'answer' then
    if redis.call('EXISTS', P .. ':job:' .. id) == 0 and not has_place(id) then drop(key) end
  elseif kind == 'batch' then
    give_end(key)
  elseif kind == 'budget' and id == 'held' then
    look_at_budget()
  end
end
return { now, placed, removed }
