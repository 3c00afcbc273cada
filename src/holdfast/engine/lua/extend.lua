-- extend: leased -> leased, with a later lapse
--
-- ARGV   time, caller, number, lease_ms, settles
-- reply  '1' (held), 'c' (held, but the job is cancelled) or '0' (lost) per lease

local again = begin()
if again then return again end

local lapses_at = after_ms(whole(ARGV[4], 1, MAX_INSTANT, 'lease_ms'))
local groups = read_settles(5)
local ids, _, numbers, flags = held(groups, true)
if #ids > 0 then
  local leased = {}
  local has_facts = call('HLEN', key.facts) > 0
  local found = has_facts and call('HMGET', key.facts, unpack(ids))
  for i, id in ipairs(ids) do
    leased[2 * i - 1], leased[2 * i] = lapses_at, id
    if has_facts and is_cancelled(read_facts(found[i])) then flags[numbers[i]] = 'c' end
  end
  call('ZADD', key.leased, unpack(leased))
end
return finish({table.concat(flags)})
