-- Agree on the layout and do nothing else; see layout.lua. Returns the newest layout that was written.
return tonumber(string.match(redis.call('GET', P .. ':layout'), '^%d+'))
