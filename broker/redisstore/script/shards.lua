-- Agree on the number of shards before anything is read or written, and before layout.lua writes: what was used
-- without saying has one.
--
--   P:shards   string  how many shards the deployment has; only where that is more than one
--
-- ARGV: the number of shards that the program has; one where it says nothing.
do
  local shards = ARGV[1] or '1'
  local said = redis.call('GET', P .. ':shards') or (redis.call('EXISTS', P .. ':layout') == 1 and '1')
  if said and said ~= shards then return redis.error_reply('SHARDS ' .. said) end
  if not said and shards ~= '1' then
    never_refused()
    redis.call('SET', P .. ':shards', shards)
  end
end
