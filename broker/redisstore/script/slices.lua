-- Read the counts of latency slices that are not empty. ARGV: first slice, last slice, then series names.
-- Returns a flat list: place of the series (from 0), slice, its fields and counts as a list.
local from, to = tonumber(ARGV[1]), tonumber(ARGV[2])
local out = {}
for i = 3, #ARGV do
  for n = from, to do
    local counts = redis.call('HGETALL', P .. ':latency:' .. ARGV[i] .. ':' .. int(n))
    if #counts > 0 then
      out[#out + 1] = i - 3
      out[#out + 1] = n
      out[#out + 1] = counts
    end
  end
end
return out
