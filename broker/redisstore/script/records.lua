-- Read what a check wants of jobs' records. ARGV: ids. Returns per id: state ('' when there is none), outcome, attempts,
-- accepted, ended, and 1 where the job is unfinished and its producer's unfinished jobs do not have it in its place.
local out = {}
local now = now_ms()
for _, id in ipairs(ARGV) do
  local f = redis.call('HMGET', P .. ':job:' .. id, 'state', 'outcome', 'attempts', 'accepted', 'ended')
  for i = 1, 5 do out[#out + 1] = f[i] or '' end
  out[#out + 1] = unlisted(id, now) and 1 or 0
end
return out
