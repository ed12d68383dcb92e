-- Settle attempts. ARGV: ledger_rows, then per attempt: key, row, path, priced, input, output, cost, currency, known.
-- Returns how many rows were open.
local n = 0
for i = 2, #ARGV, 9 do
  if settle(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5]),
      tonumber(ARGV[i + 6]), ARGV[i + 7], ARGV[i + 8], ARGV[1]) then n = n + 1 end
end
return n
