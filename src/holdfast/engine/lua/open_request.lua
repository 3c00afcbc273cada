-- open_request: nothing -> a request; an open request goes on; an ended request that need not be
-- kept any longer is forgotten first
--
-- ARGV   time, caller, number, request, priority, limit ('' = none), fail_fast, keep_for_ms,
--        open_for_ms ('' = no end), follow-up ('' = none, else a group of jobs, see read_jobs)
-- reply  '1' opened, 'o' open already, 's' sealed, 'e' ended and kept, 'g' a group has the name;
--        parts so far; 1 while an ended request is being forgotten, so ask again, else 0

local again = begin()
if again then return again end

local request = owner_name(ARGV[4])
if #request > MAX_REQUEST then refuse('INVALID', 'request') end
local priority = whole(ARGV[5], 0, MAX_PRIORITY, 'priority')
local limit = ARGV[6] ~= '' and whole(ARGV[6], 0, MAX_INSTANT, 'limit') or -1
local keep_for = whole(ARGV[8], 0, MAX_INSTANT, 'keep_for')
local open_for = ARGV[9] ~= '' and whole(ARGV[9], 1, MAX_INSTANT, 'open_for')
local follow_ups = ARGV[10] ~= '' and read_jobs(ARGV, 10) or {}
local follow_up = follow_ups[1]
-- A thousand requests may end in one call, and each of them adds its follow-up.
if #follow_ups > 1 or follow_up and #ARGV[follow_up.first + 1] * MAX_JOBS > MAX_BYTES then
  refuse('INVALID', 'follow-up')
end
check_groups(follow_ups)
check_types()
check_requests()

local record, letter, gone, more = request_of(request), '1', false, false
if record then gone, more = forget_expired(request, record) end
if gone or not record then
  record = new_request(request)
  record.priority, record.limit, record.keep_for_ms = priority, limit, keep_for
  record.fail_fast = ARGV[7] == '1' and 1 or 0
  if follow_up then
    local update = update_of(follow_up, ARGV[follow_up.first + 1], '1=11')
    -- The delay begins when the follow-up is added.
    local delayed = follow_up.due and string.sub(ARGV[12], 1, 1) == '+'
    local never = update.due == MAX_INSTANT  -- However late the request ends.
    update.after = delayed and (never and MAX_INSTANT or update.due - this.now) or nil
    call('HSET', key.requests, request .. '/end', cmsgpack.pack(update))
  end
  tell('opened', {request})
else
  letter = 'o'
  if record.sealed == 1 then letter = 's' end
  if record.outcome > 0 then letter = 'e' end
  if record.group == 1 then letter = 'g' end
end
if letter == '1' or letter == 'o' and open_for then
  call('ZADD', key.terms, open_for and after_ms(open_for) or MAX_INSTANT, request)
end
settle_requests()
return finish({letter, record.total, more and 1 or 0})
