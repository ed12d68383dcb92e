-- Take ends of jobs that webhooks are due to be told of, so that nobody else tells them for lease_ms.
-- ARGV: lease_ms, then producers, each followed by the most of its ends to take.
-- Returns {now, then per end: producer, id, attempt (from 1), its record as a list after its length}.
never_refused()
local now, lease = now_ms(), tonumber(ARGV[1])
local out = { now }
for i = 2, #ARGV, 2 do
  local producer, key = ARGV[i], P .. ':webhooks:' .. ARGV[i]
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', int(now), 'LIMIT', 0, ARGV[i + 1])) do
    local record_key = P .. ':webhook:' .. id
    if redis.call('EXISTS', record_key) == 0 then -- its day is over
      redis.call('ZREM', key, id)
      count_webhook('given_up', producer)
    else
      redis.call('ZADD', key, int(now + lease), id)
      local attempt, flat = redis.call('HINCRBY', record_key, 'told_attempts', 1), redis.call('HGETALL', record_key)
      for _, x in ipairs({ producer, id, attempt, #flat }) do out[#out + 1] = x end
      for _, x in ipairs(flat) do out[#out + 1] = x end
    end
  end
end
return out
