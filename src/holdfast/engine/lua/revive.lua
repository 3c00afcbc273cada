-- revive: failed -> ready | parked, behind its equals, as if it had never run
--
-- ARGV   time, caller, number, ids
-- reply  '1' or '0' per id
--
-- Reviving a part of an ended request reopens the request. A part of a request that is being
-- stopped is not revived.

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
  local facts = facts_of(id)
  local record = facts.request and request_of(facts.request)
  flags[i] = '0'
  if not (record and record.stopping > 0) and call('ZREM', key.failed, id) == 1 then
    local priority = facts.priority or 50
    count(facts, field.failed, -1)
    if record and record.outcome > 0 then reopen(facts.request, record) end
    facts.failures, facts.lapses, facts.error, facts.raised = nil, nil, nil, nil
    facts.failed_at, facts.handlings, facts.max_handlings, facts.number = nil, nil, nil, nil
    put_waiting(id, facts, priority, nil, 0)
    flags[i] = '1'
    revived[#revived + 1] = id
  end
end
tell('revived', revived)
settle_requests()
return finish({table.concat(flags)})
