-- cancel_matching: cancel the jobs with this payload, among some ids
--
-- ARGV   time, caller, number, running, payload, set (1…), place in it ('' = its end), how many
--        ids to look at
-- reply  how many were cancelled, next set (0 = done), next place (0 = its end)
--
-- Walks ids, and compares lengths before bytes, so that few payloads are read. `leased` is walked
-- first and last, because jobs move into it and out of it during the walk.

local again = begin()
if again then return again end

local SETS = {key.leased, key.delayed, key.parked, key.ready, key.failed, key.leased}
local running, payload = ARGV[4] == '1', ARGV[5]
local index = whole(ARGV[6], 1, #SETS, 'set')
local from = ARGV[7] ~= '' and whole(ARGV[7], 0, MAX_INSTANT, 'place')
local budget = whole(ARGV[8], 1, MAX_JOBS, 'count')
check_types()
for _, set in ipairs({key.delayed, key.parked, key.failed, key.ended}) do call('ZCARD', set) end
call('HLEN', key.results)

local function matches(id)
  return call('HSTRLEN', key.jobs, id) == #payload and call('HGET', key.jobs, id) == payload
end

-- A successor is compared by its own payload.
local function drop_successor(id)
  local length = this.has_next and call('HSTRLEN', key.next, id) or 0
  if length < #payload or length > #payload + MAX_ERROR then return false end
  local update = read_update(call('HGET', key.next, id))
  if not update or update.payload ~= payload then return false end
  book()
  return call('HDEL', key.next, id) == 1
end

-- How many of these ids, from the end, this call can look at: every payload of the same length must
-- be read.
local room = math.max(1, math.floor(MAX_BYTES / math.max(1, #payload)))
local function how_many_fit(ids)
  for i = #ids, 1, -1 do
    if call('HSTRLEN', key.jobs, ids[i]) == #payload then room = room - 1 end
    if room < 0 then return #ids - i end
  end
  return #ids
end

local cancelled, at = 0, nil
while index <= #SETS and budget > 0 do
  local stop = math.min(from or math.huge, call('ZCARD', SETS[index])) - 1
  local start = math.max(0, stop - budget + 1)
  local ids = stop >= 0 and call('ZRANGE', SETS[index], start, stop) or {}
  if SETS[index] == key.parked then
    for i, member in ipairs(ids) do ids[i] = read_parked(member) end
  end
  local left = #ids * #payload > MAX_BYTES and #ids - how_many_fit(ids) or 0
  start = start + left
  for i = left + 1, #ids do
    local id = ids[i]
    if matches(id) and cancel_job(id, running, true) then cancelled = cancelled + 1 end
    if drop_successor(id) then cancelled = cancelled + 1 end
  end
  budget = left == 0 and budget - #ids or 0
  if start == 0 then
    index, from, at = index + 1, nil, nil
  else
    from, at = start, start
  end
end
settle_requests()
return finish({cancelled, index <= #SETS and index or 0, at or 0})
