-- Set or clear a flag, with its row in the audit trail. ARGV: key, name, class, value ('' clears), by, reason,
-- for_ms (0: until cleared), seen (the version of the flags that is changed; '': any). Returns {now, version}; 0 for the
-- version: the flags have changed since, and nothing is done.
local key, name, class, value, by, reason, for_ms, seen = unpack(ARGV)
local now = now_ms()
if seen ~= '' and seen ~= (redis.call('GET', P .. ':flags:version') or '0') then return { now, 0 } end
local from = ''
local old = redis.call('HGET', P .. ':flags', key)
if old then
  local ok, e = pcall(cjson.decode, old)
  if not ok then
    from = '?'
  elseif (e.until_ms or 0) == 0 or e.until_ms > now then
    from = e.value
  end
end
local until_ms = 0
if tonumber(for_ms) > 0 then until_ms = now + tonumber(for_ms) end
if value == '' then
  redis.call('HDEL', P .. ':flags', key)
else
  local e = { name = name, value = value, by = by, reason = reason, at_ms = now }
  if class ~= '' then e.class = class end
  if until_ms > 0 then e.until_ms = until_ms end
  redis.call('HSET', P .. ':flags', key, cjson.encode(e))
end
redis.call('XADD', P .. ':audit', 'MAXLEN', '~', 100000, '*', 'at_ms', int(now), 'name', name, 'class', class,
  'from', from, 'to', value, 'by', by, 'reason', reason, 'until_ms', int(until_ms))
return { now, redis.call('INCR', P .. ':flags:version') }
