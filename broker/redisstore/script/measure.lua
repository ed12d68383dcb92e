-- Count how long calls took, in slices of the store's own clock.
-- ARGV: slice_ms, keep_ms, sum field, then per call: name, field, ms (-1 for a call that was cut).
local slice = math.floor(now_ms() / tonumber(ARGV[1]))
for i = 4, #ARGV, 3 do
  local key = P .. ':latency:' .. ARGV[i] .. ':' .. int(slice)
  redis.call('HINCRBY', key, ARGV[i + 1], 1)
  if tonumber(ARGV[i + 2]) >= 0 then redis.call('HINCRBY', key, ARGV[3], ARGV[i + 2]) end
  redis.call('PEXPIRE', key, ARGV[2])
end
return slice
