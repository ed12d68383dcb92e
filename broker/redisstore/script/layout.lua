-- Agree on the layout of the store before anything is read or written: each script begins with this, so that a program
-- which cannot work on what is stored does nothing to it, from the very next call on. docs/decisions/0007-layouts.md
-- has the rules.
--
--   P:layout   string  "<version> <open to>": the newest layout that was written here, and the oldest whose programs can
--                      work on that
--
-- layout.version, .reads and .open_to are the program's own; see layout.go.
do
  local said = redis.call('GET', P .. ':layout')
  if said ~= layout.version .. ' ' .. layout.open_to then
    local version, open_to = string.match(said or '0 0', '^(%d+) (%d+)$')
    version, open_to = tonumber(version), tonumber(open_to)
    if not version then return redis.error_reply('LAYOUT ? ?') end
    if open_to > layout.version or (said and version < layout.reads) then
      return redis.error_reply('LAYOUT ' .. version .. ' ' .. open_to)
    end
    if version < layout.version then
      never_refused()
      redis.call('SET', P .. ':layout', layout.version .. ' ' .. math.max(open_to, layout.open_to))
    end
  end
end
