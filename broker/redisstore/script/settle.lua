-- Settle attempts. ARGV: books, then per attempt: key, row, path, priced, input, output, cost, currency, known,
-- class, producer, backend, differs (1: the backend reported another cost than its price makes).
-- Returns how many rows were open.
never_refused()
local n = 0
for i = 2, #ARGV, const.settle_args do
  if settle(attempt_at(i), ARGV[1]) then n = n + 1 end
end
return n
