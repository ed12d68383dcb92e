-- Read the gate's state. ARGV: paid limit, free limit.
-- Returns now, then per pool: capacity, waiting, running, queue age, released, and the ages of the running
-- jobs and of those that have had no answer text yet, and what each active producer wants (submissions that fade over
-- const.demand_fades_ms, since when they fade, the first of them), each list after its length.
local now = now_ms()
local out = { now }
for i, name in ipairs({ 'paid', 'free' }) do
  out[#out + 1] = math.min(tonumber(ARGV[i]), live_slots(name, now))
  out[#out + 1] = redis.call('ZCARD', P .. ':waiting:' .. name)
  out[#out + 1] = redis.call('ZCARD', P .. ':running:' .. name)
  out[#out + 1] = age_of(P .. ':age:' .. name, now)
  out[#out + 1] = released(name)
  for _, set in ipairs({ 'started', 'silent' }) do
    local since = redis.call('ZRANGE', P .. ':' .. set .. ':' .. name, 0, 511, 'WITHSCORES')
    out[#out + 1] = #since / 2
    for j = 2, #since, 2 do out[#out + 1] = math.max(0, now - tonumber(since[j])) end
  end
  local all, active = redis.call('HGETALL', P .. ':demand:' .. name), {}
  for j = 2, #all, 2 do
    local n, at, first = demand_of(all[j])
    if now - at <= demand_kept then
      for _, x in ipairs({ string.format('%.6f', n), int(at), int(first) }) do active[#active + 1] = x end
    end
  end
  out[#out + 1] = #active
  for _, x in ipairs(active) do out[#out + 1] = x end
end
return out
