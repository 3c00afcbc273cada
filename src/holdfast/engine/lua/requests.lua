-- Transitions of requests: opening them, adding parts, changing limits, looking.

-- open_request: nothing -> a request; an open request goes on; an ended request that need not be
-- kept any longer is forgotten first
--
-- ARGV   time, caller, number, request, priority, limit ('' = none), fail_fast, keep_for_ms,
--        open_for_ms ('' = no end), follow-up ('' = none, else a group of jobs, see read_jobs)
-- reply  '1' opened, 'o' open already, 's' sealed, 'e' ended and kept, 'g' a group has the name;
--        parts so far; 1 while an ended request is being forgotten, so ask again, else 0
function transition.open_request()
  local again = begin()
  if again then return again end

  local request = owner_name(args[4])
  if #request > MAX_REQUEST then refuse('INVALID', 'request') end
  local priority = whole(args[5], 0, MAX_PRIORITY, 'priority')
  local limit = args[6] ~= '' and whole(args[6], 0, MAX_INSTANT, 'limit') or -1
  local keep_for = whole(args[8], 0, MAX_INSTANT, 'keep_for')
  local open_for = args[9] ~= '' and whole(args[9], 1, MAX_INSTANT, 'open_for')
  local follow_ups = args[10] ~= '' and read_jobs(args, 10) or {}
  local follow_up = follow_ups[1]
  -- A thousand requests may end in one call, and each of them adds its follow-up.
  if #follow_ups > 1 or follow_up and #args[follow_up.first + 1] * MAX_JOBS > MAX_BYTES then
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
    record.fail_fast = args[7] == '1' and 1 or 0
    if follow_up then
      local update = update_of(follow_up, args[follow_up.first + 1], '1=11')
      -- The delay begins when the follow-up is added.
      local delayed = follow_up.due and string.sub(args[12], 1, 1) == '+'
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
    set_term(request, open_for and after_ms(open_for) or MAX_INSTANT)
  end
  settle_requests()
  return finish({letter, record.total, more and 1 or 0})
end

-- add_parts: nothing -> parked | delayed, as parts of an open request
--
-- ARGV   time, caller, number, request, number of the first part ('' = after the last),
--        priority, due ('' = now), options ('' = none), payloads
-- reply  '1', or why not: '0' no such request, 's' sealed, 'e' ended, 'g' it is a group;
--        number of parts before, number of parts now
--
-- A part whose number is below the total was added before and is skipped. So if a producer dies,
-- a new one can start again from the beginning.
function transition.add_parts()
  local again = begin()
  if again then return again end

  local sent, bytes = #args - 8, 0
  if sent < 1 or sent > MAX_JOBS then refuse('INVALID', 'count') end
  local request = owner_name(args[4])
  local first = args[5] ~= '' and whole(args[5], 0, MAX_INSTANT, 'first') or nil
  local priority = whole(args[6], 0, MAX_PRIORITY, 'priority')
  local due = args[7] ~= '' and read_due(args[7]) or nil
  local facts = args[8] ~= '' and read_options(args[8]) or {}
  if facts.group or facts.result_for_ms or facts.remember_for_ms then
    refuse('INVALID', 'options')
  end
  for i = 9, #args do
    bytes = bytes + #args[i]
    if #args[i] > this.largest then
      this.largest = #args[i]
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
    local payloads = {unpack(args, 9 + skipped)}
    local taken = taken_part(request, before, n)
    if taken then refuse('TAKEN', string.format('%d', taken)) end
    append_parts(request, record, payloads, priority, due, facts)
  end
  settle_requests()
  return finish({letter, before, record and record.total or 0})
end

-- change_request: seal a request, stop it, or change its limit or priority
--
-- ARGV   time, caller, number, request, seal, cancel ('1' or ''), limit ('' = as it is,
--        '-' = none), priority ('' = as it is), group ('1' = it must be a group, '' = it must not)
-- reply  '1'; '0' no such request or group; 'e' it has ended; 's' it was stopped before; 'g' it is
--        a group; then how many of its parts still wait to be cancelled
--
-- A group has a limit, but cannot be sealed or stopped, and has no priority.
function transition.change_request()
  local again = begin()
  if again then return again end

  local request, seal, cancel = owner_name(args[4]), args[5] == '1', args[6] == '1'
  local limit, priority, group = args[7], args[8], args[9] == '1'
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
      set_term(request, MAX_INSTANT)
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
end

-- requests: the records of one request, or of some
--
-- ARGV   time, request ('' = some of them), place in `terms` ('' = its end), how many to look at
-- reply  now, next place (0 = done), then per request its name, its record, and its score in
--        `terms`: when lease or tidy must process it ('' if it has none)
function transition.requests()
  look()
  local names, start = {args[2]}, 0
  if args[2] == '' then
    local from = args[3] ~= '' and whole(args[3], 0, MAX_INSTANT, 'place') or math.huge
    local budget = whole(args[4], 1, MAX_JOBS, 'count')
    local stop = math.min(from, call('ZCARD', key.terms)) - 1
    start = math.max(0, stop - budget + 1)
    names = stop >= 0 and call('ZRANGE', key.terms, start, stop) or {}
  end
  local found = {string.format('%d', this.now), start}
  for _, request in ipairs(names) do
    local packed = call('HGET', key.requests, request)
    if packed then
      found[#found + 1] = request
      found[#found + 1] = packed
      found[#found + 1] = call('ZSCORE', key.terms, request) or ''
    end
  end
  return found
end

-- parts: the state of some parts of a request
--
-- ARGV   time, request, number of the first part, how many
-- reply  parts so far (-1 = no such request), then per part its state (see add; '' when it has
--        ended), facts or '', result or false; as many results as fit into one reply
function transition.parts()
  look()
  local request = name(args[2], 'request')
  local first = whole(args[3], 0, MAX_INSTANT, 'first')
  local wanted = whole(args[4], 1, MAX_JOBS, 'count')
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
end
