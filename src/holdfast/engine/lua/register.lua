-- register: record that a worker is alive, for the next alive_ms
--
-- ARGV   time, caller, number, holder, alive_ms, about (msgpack, opaque)
-- reply  '1'
--
-- A directory for people, not a recovery path: leases lapse whether or not their worker registered.

local again = begin()
if again then return again end

local holder, about = name(ARGV[4], 'holder'), ARGV[6]
local until_ms = after_ms(whole(ARGV[5], 1, MAX_INSTANT, 'alive_ms'))
if not about or #about > MAX_ERROR then refuse('INVALID', 'about') end
call('HSET', key.workers, holder, string.format('%d', until_ms) .. ' ' .. about)
-- Each registration looks at four random entries, and drops workers that are long gone.
for _, other in ipairs(call('HRANDFIELD', key.workers, 4)) do
  local alive_until = string.match(call('HGET', key.workers, other), '^(%d+) ')
  if this.now - (alive_until or 0) > CALLER_MS then call('HDEL', key.workers, other) end
end
return finish({'1'})
