-- Open a batch for lines, or one on record for more of them, or close it to all further ones.
-- ARGV: id, producer, mode ('new' makes it where there is none, 'again' does not, 'close' closes it), ttl_ms (in
-- the lists), most lines, receiving_ms, batches to list, ttl_ms until it has lines.
-- Returns {now, 'ok', run}, or {now, 'missing'|'full'|'cancelled'|'closed'}.
local id, producer, mode, ttl, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local key, now = P .. ':batch:' .. id, now_ms()
if redis.call('EXISTS', key) == 0 then
  if mode ~= 'new' then return { now, 'missing' } end
  redis.call('UNLINK', key .. ':order', key .. ':lines', key .. ':ended') -- of one of that name before
  redis.call('HSET', key, 'producer', producer, 'created', int(now))
  list_newest('batches', producer, id, ARGV[7], ttl)
end
if mode == 'close' then
  never_refused()
  redis.call('HSETNX', key, 'cancelled', int(now))
  return { now, 'closed' }
end
if redis.call('HEXISTS', key, 'cancelled') == 1 then return { now, 'cancelled' } end
if redis.call('ZCARD', key .. ':order') > most then return { now, 'full' } end
local run = redis.call('HINCRBY', key, 'runs', 1)
redis.call('HSET', key, 'receiving', int(now + tonumber(ARGV[6])))
keep_batch(key, tonumber(ARGV[8]))
return { now, 'ok', run }
