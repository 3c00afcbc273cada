-- add_parts: nothing -> parked | delayed, as parts of an open request
--
-- ARGV   time, caller, number, request, number of the first part ('' = after the last),
--        priority, due ('' = now), options ('' = none), payloads
-- reply  '1', or why not: '0' no such request, 's' sealed, 'e' ended, 'g' it is a group;
--        number of parts before, number of parts now
--
-- A part whose number is below the total was added before and is skipped. So if a producer dies,
-- a new one can start again from the beginning.

local again = begin()
if again then return again end

local sent, bytes = #ARGV - 8, 0
if sent < 1 or sent > MAX_JOBS then refuse('INVALID', 'count') end
local request = owner_name(ARGV[4])
local first = ARGV[5] ~= '' and whole(ARGV[5], 0, MAX_INSTANT, 'first') or nil
local priority = whole(ARGV[6], 0, MAX_PRIORITY, 'priority')
local due = ARGV[7] ~= '' and read_due(ARGV[7]) or nil
local facts = ARGV[8] ~= '' and read_options(ARGV[8]) or {}
if facts.group or facts.result_for_ms or facts.remember_for_ms then refuse('INVALID', 'options') end
for i = 9, #ARGV do
  bytes = bytes + #ARGV[i]
  if #ARGV[i] > this.largest then
    this.largest = #ARGV[i]
    note('largest', this.largest)
  end
end
if bytes > MAX_BYTES then refuse('INVALID', 'too much for one call') end
check_types()
check_requests()

local record, letter = request_of(request), '1'
local before = record and record.total or 0
first = first or before
if not record or record.group == 1 then
  letter = record and 'g' or '0'
elseif record.sealed == 1 then
  letter = record.outcome > 0 and 'e' or 's'
elseif first > before then
  refuse('GAP', string.format('%d', before))
end

local skipped = before - first
local n = letter == '1' and sent - skipped or 0
if n > 0 then
  local payloads = {unpack(ARGV, 9 + skipped)}
  local taken = taken_part(request, before, n)
  if taken then refuse('TAKEN', string.format('%d', taken)) end
  append_parts(request, record, payloads, priority, due, facts)
end
settle_requests()
return finish({letter, before, record and record.total or 0})
