-- Put down what was said to lines of a batch that became no jobs.
-- ARGV: batch, ttl_ms, receiving_ms (how long until more must have come; 0: there is no more), then per line: name,
-- place, reason, document.
-- Returns 1, or 0 when the batch is not on record any more.
local batch, ttl, receiving = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local key = P .. ':batch:' .. batch
if redis.call('EXISTS', key) == 0 then return 0 end
if receiving > 0 then receiving = now_ms() + receiving end
redis.call('HSET', key, 'receiving', int(receiving))
local lines = {}
for i = 4, #ARGV, 4 do
  lines[#lines + 1] = ARGV[i]
  lines[#lines + 1] = tonumber(ARGV[i + 1])
  lines[#lines + 1] = 'R' .. ARGV[i + 2] .. '|' .. ARGV[i + 3]
end
set_lines(batch, lines, ttl)
keep_batch(key, ttl)
return 1
