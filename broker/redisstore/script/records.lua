-- Read what a check wants of jobs' records. ARGV: ids. Returns per id: state ('' when there is none), outcome, attempts,
-- accepted, ended.
local out = {}
for _, id in ipairs(ARGV) do
  local f = redis.call('HMGET', P .. ':job:' .. id, 'state', 'outcome', 'attempts', 'accepted', 'ended')
  for i = 1, 5 do out[#out + 1] = f[i] or '' end
end
return out
