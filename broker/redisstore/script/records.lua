-- Read what a check wants of jobs' records. ARGV: ids. Returns per id: state ('' when there is none), outcome, attempts,
-- accepted, ended, and 1 where the job is unfinished and its producer's unfinished jobs do not have it in its place.
local out = {}
local now = now_ms()
for _, id in ipairs(ARGV) do
  local r = fields(id) or {}
  for _, name in ipairs({ 'state', 'outcome', 'attempts', 'accepted', 'ended' }) do
    out[#out + 1] = r[name] or ''
  end
  out[#out + 1] = unlisted(id, r, now) and 1 or 0
end
return out
