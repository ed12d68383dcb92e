-- Commit a claimed job's outcome with its ledger rows, fenced.
-- ARGV: id, fence, outcome, cause, reason, backend, first_byte_ms, details, answer, keep_ms, books,
-- then the attempts to settle, as settle.lua takes them.
-- Returns the job as it ended: its id, and its record as a list after its length; also when this very claim had
-- committed before. Nothing when fenced; a fenced caller still settles its own spend rows.
never_refused()
local id, fence = ARGV[1], ARGV[2]
local books = ARGV[11]
for i = 12, #ARGV, const.settle_args do settle(attempt_at(i), books) end
local r = record(id)
if not r or r.fence ~= fence then return {} end
if r.state == 'done' then return tell_end({}, id) end
if r.state ~= 'running' then return {} end
local now = now_ms()
local outcome, cause, reason = ARGV[3], ARGV[4], ARGV[5]
-- a cancel that arrived in time wins over whatever else the attempt came to
if r.cancel == '1' and outcome ~= 'usable' then outcome, cause, reason = 'cancelled', '', '' end
if ARGV[9] ~= '' then redis.call('SET', P .. ':answer:' .. id, ARGV[9], 'PX', ARGV[10]) end
end_job(id, r, now, { outcome = outcome, cause = cause, reason = reason, backend = ARGV[6],
  first_byte_ms = ARGV[7], details = ARGV[8], keep_ms = ARGV[10], books = books })
return tell_end({}, id)
