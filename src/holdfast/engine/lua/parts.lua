-- parts: the state of some parts of a request
--
-- ARGV   time, request, number of the first part, how many
-- reply  parts so far (-1 = no such request), then per part its state (see add; '' when it has
--        ended), facts or '', result or false; as many results as fit into one reply

look()
local request = name(ARGV[2], 'request')
local first = whole(ARGV[3], 0, MAX_INSTANT, 'first')
local wanted = whole(ARGV[4], 1, MAX_JOBS, 'count')
local record = request_of(request)
if not record or record.group == 1 then return {-1} end

local function state_in(id, facts)
  if call('HEXISTS', key.jobs, id) == 0 then return '' end
  for letter, set in pairs({l = key.leased, f = key.failed, d = key.delayed}) do
    if call('ZSCORE', set, id) then return letter end
  end
  if not (facts.request or facts.group) then return 'r' end
  return call('ZSCORE', key.parked, parked_member(id, facts)) and 'p' or 'r'
end

local found, bytes = {record.total}, 0
for number = first, math.min(first + wanted, record.total) - 1 do
  local id = part_id(request, number)
  local facts = call('HGET', key.facts, id)
  bytes = bytes + call('HSTRLEN', key.results, id)
  if number > first and bytes > MAX_BYTES then break end
  found[#found + 1] = state_in(id, read_facts(facts))
  found[#found + 1] = facts or ''
  found[#found + 1] = call('HGET', key.results, id)
end
return found
