-- Drop rows of a ledger that the archive has taken. ARGV: ledger, id of the last archived row, oldest instant to keep,
-- rows to keep (a bound that holds before that instant does), most rows to drop for it at once.
-- Returns how many were dropped, and 1 if there is more to drop.
local key = P .. ':ledger:' .. ARGV[1]
local archived_ms, archived_seq = string.match(ARGV[2], '^(%d+)%-(%d+)$')
local keep_from, rows, most = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
-- the first id that stays, were it for age alone
local first = archived_ms .. '-' .. int(tonumber(archived_seq) + 1)
if keep_from <= tonumber(archived_ms) then first = int(math.max(0, keep_from)) .. '-0' end
local dropped = redis.call('XTRIM', key, 'MINID', first)
local over = redis.call('XLEN', key) - rows
if over <= 0 then return { dropped, 0 } end
local old = redis.call('XRANGE', key, '-', ARGV[2], 'COUNT', int(math.min(over, most)))
if #old == 0 then return { dropped, 0 } end
local ms, seq = string.match(old[#old][1], '^(%d+)%-(%d+)$')
redis.call('XTRIM', key, 'MINID', ms .. '-' .. int(tonumber(seq) + 1))
if over > #old and #old == most then return { dropped + #old, 1 } end
return { dropped + #old, 0 }
