-- Read the gate's state. ARGV: paid limit, free limit.
-- Returns now, then per pool: capacity, waiting, running, queue age, released, number of
-- running jobs listed, and for each its age.
local now = now_ms()
local out = { now }
for i, name in ipairs({ 'paid', 'free' }) do
  out[#out + 1] = math.min(tonumber(ARGV[i]), live_slots(name, now))
  out[#out + 1] = redis.call('ZCARD', P .. ':waiting:' .. name)
  out[#out + 1] = redis.call('ZCARD', P .. ':running:' .. name)
  out[#out + 1] = age_of(P .. ':age:' .. name, now)
  out[#out + 1] = released(name)
  local started = redis.call('ZRANGE', P .. ':started:' .. name, 0, 511, 'WITHSCORES')
  out[#out + 1] = #started / 2
  for j = 2, #started, 2 do out[#out + 1] = math.max(0, now - tonumber(started[j])) end
end
return out
