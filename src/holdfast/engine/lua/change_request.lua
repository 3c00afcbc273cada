-- change_request: seal a request, stop it, or change its limit or priority
--
-- ARGV   time, caller, number, request, seal, cancel ('1' or ''), limit ('' = as it is,
--        '-' = none), priority ('' = as it is), group ('1' = it must be a group, '' = it must not)
-- reply  '1'; '0' no such request or group; 'e' it has ended; 's' it was stopped before; 'g' it is
--        a group; then how many of its parts still wait to be cancelled
--
-- A group has a limit, but cannot be sealed or stopped, and has no priority.

local again = begin()
if again then return again end

local request, seal, cancel = owner_name(ARGV[4]), ARGV[5] == '1', ARGV[6] == '1'
local limit, priority, group = ARGV[7], ARGV[8], ARGV[9] == '1'
if group and (seal or cancel or priority ~= '') then refuse('INVALID', 'group') end
limit = limit == '-' and -1 or limit ~= '' and whole(limit, 0, MAX_INSTANT, 'limit') or nil
priority = priority ~= '' and whole(priority, 0, MAX_PRIORITY, 'priority') or nil
check_types()
check_requests()

local record, letter = request_of(request), '1'
if not record or group and record.group == 0 then
  letter = '0'
elseif record.group == 1 and not group then
  letter = 'g'
elseif record.outcome > 0 then
  letter = 'e'
else
  if seal and record.sealed == 0 then
    record.sealed = 1
    call('ZADD', key.terms, MAX_INSTANT, request)
    tell('sealed', {request})
  end
  if cancel and record.stopping > 0 then
    letter = 's'
  elseif cancel then
    record.stopping, record.sealed = CANCELLED, 1
    tell('cancelling', {request})
  end
  if limit or priority then
    record.limit, record.priority = limit or record.limit, priority or record.priority
    tell('changed', {request})
  end
end
settle_requests()
local waiting = 0
if record and record.stopping > 0 then
  waiting = record.total - count_settled(record) - record.running
end
return finish({letter, waiting})
