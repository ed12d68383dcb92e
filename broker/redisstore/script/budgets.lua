-- Read how far budgets are used, at one instant. Nothing is written. ARGV: fields.
-- Returns now, then per field what is spent today and what is reserved.
local now = now_ms()
local out = { now }
local spent = spent_key(now)
for _, f in ipairs(ARGV) do
  out[#out + 1] = tonumber(redis.call('HGET', spent, f) or '0')
  out[#out + 1] = tonumber(redis.call('HGET', P .. ':budget:reserved', f) or '0')
end
return out
