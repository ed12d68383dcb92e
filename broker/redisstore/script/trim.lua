-- Drop rows of a ledger that the archive has taken. ARGV: ledger, id of the last archived row, oldest instant to keep,
-- rows to keep (a bound that holds before that instant does), most rows to drop.
-- Returns how many were dropped; call it again when that is the most.
local key = P .. ':ledger:' .. ARGV[1]
local keep_from, rows, most = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local over = redis.call('XLEN', key) - rows
local first = nil
local n = 0
for _, entry in ipairs(redis.call('XRANGE', key, '-', ARGV[2], 'COUNT', most)) do
  local ms = tonumber(string.match(entry[1], '^%d+'))
  if ms >= keep_from and n >= over then break end
  n, first = n + 1, entry[1]
end
if n == 0 then return 0 end
local ms, seq = string.match(first, '^(%d+)%-(%d+)$')
redis.call('XTRIM', key, 'MINID', ms .. '-' .. int(tonumber(seq) + 1))
return n
