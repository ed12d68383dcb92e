-- Read a page of a producer's unfinished jobs in a pool. ARGV: pool, producer, cursor. Nothing is written.
-- Returns the next cursor (0: that was the last page), the jobs looked at, those among them whose record is gone, and the
-- ids of those that are not that producer's unfinished jobs in that pool.
local pool, producer = ARGV[1], ARGV[2]
local page = redis.call('ZSCAN', live_key(pool, producer), ARGV[3], 'COUNT', 200)
local now = now_ms()
local seen, gone, ended = 0, 0, {}
for i = 1, #page[2], 2 do
  local id, urgency = page[2][i], tonumber(page[2][i + 1])
  if urgency >= now - live_after then -- others count for nothing
    seen = seen + 1
    local r = fields(id)
    if not (r and r.state) then
      gone = gone + 1
    elseif (r.state ~= 'waiting' and r.state ~= 'running') or r.path ~= pool or (r.producer or '') ~= producer then
      ended[#ended + 1] = id
    end
  end
end
local out = { page[1], seen, gone }
for _, id in ipairs(ended) do out[#out + 1] = id end
return out
