-- workers: who registered, and until when each said to be alive
--
-- ARGV   time
-- reply  now, then per worker holder, '<alive until> <about>'

look()
local found = {string.format('%d', this.now)}
for _, value in ipairs(call('HGETALL', key.workers)) do found[#found + 1] = value end
return found
