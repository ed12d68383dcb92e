-- Put down how an attempt at a webhook ended. ARGV: producer, id, attempt, result (delivered, failed, given_up),
-- ms until the next attempt after a failed one.
-- An attempt whose lease has lapsed and that another has followed changes nothing, unless it delivered.
-- Returns the result as it was put down: an end whose day would be over by the next attempt is given up; '' for none.
never_refused()
local producer, id, result = ARGV[1], ARGV[2], ARGV[4]
local key, record_key = P .. ':webhooks:' .. producer, P .. ':webhook:' .. id
local attempt = redis.call('HGET', record_key, 'told_attempts')
if not attempt or (attempt ~= ARGV[3] and result ~= 'delivered') then return '' end
if result == 'failed' and redis.call('PTTL', record_key) <= tonumber(ARGV[5]) then result = 'given_up' end
if result == 'failed' then
  redis.call('ZADD', key, 'XX', int(now_ms() + tonumber(ARGV[5])), id)
else
  redis.call('ZREM', key, id)
  redis.call('UNLINK', record_key)
end
count_webhook(result, producer)
return result
