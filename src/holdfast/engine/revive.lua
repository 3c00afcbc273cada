-- revive: failed -> ready, behind its equals, as if it had never run
--
-- ARGV   time, caller, number, ids
-- reply  '1' or '0' per id

local again = begin()
if again then return again end

local n = #ARGV - 3
if n < 1 or n > MAX_JOBS then refuse('INVALID', 'ids') end
for i = 4, #ARGV do name(ARGV[i], 'id') end
check_types()
call('ZCARD', key.failed)
call('ZCARD', key.delayed)

local flags, revived = {}, {}
for i = 1, n do
  local id = ARGV[i + 3]
  flags[i] = '0'
  if call('ZREM', key.failed, id) == 1 then
    local facts = facts_of(id)
    local priority = facts.priority or 50
    facts.failures, facts.lapses, facts.error = nil, nil, nil
    facts.failed_at, facts.handlings = nil, nil
    put_waiting(id, facts, priority, nil, 0)
    flags[i] = '1'
    revived[#revived + 1] = id
  end
end
tell('revived', revived)
return finish({table.concat(flags)})
