-- Agree on the number of shards and the layout and do nothing else; see shards.lua and layout.lua. Returns the newest
-- layout that was written.
return tonumber(string.match(redis.call('GET', P .. ':layout'), '^%d+'))
