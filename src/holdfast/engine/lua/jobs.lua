-- Transitions of jobs: adding, updating, results, cancelling, reviving.

-- add: nothing -> ready | delayed
--
-- ARGV   time, caller, number, on_conflict, groups of jobs (see read_jobs)
-- reply  one letter per job: '1' created; 'L' kept until the cancelled run of this id is over;
--        else the set that already has its id:
--        r(eady) l(eased) d(elayed) f(ailed) e(nded) p(arked)
--
-- With on_conflict 'raise', one taken id refuses the whole call.
function transition.add()
  local again = begin()
  if again then return again end

  local groups = read_jobs(args, 5)
  for _, group in ipairs(groups) do
    if group.facts and group.facts.group then refuse('INVALID', 'options') end
  end
  local flags = choose(groups)
  local taken = string.find(flags, '[^1L]')
  if taken and args[4] == 'raise' then refuse('EXISTS', tostring(taken - 1)) end

  create(groups)
  return finish({flags})
end

-- add_grouped: nothing -> ready | delayed | parked: add, for calls in which a job has a group
--
-- ARGV   time, caller, number, on_conflict, groups of jobs (see read_jobs)
-- reply  one letter per job (see add)
function transition.add_grouped()
  local again = begin()
  if again then return again end

  local groups = read_jobs(args, 5)
  check_groups(groups)
  check_types()
  local flags = choose(groups)
  local taken = string.find(flags, '[^1L]')
  if taken and args[4] == 'raise' then refuse('EXISTS', tostring(taken - 1)) end

  create_each(groups)
  settle_requests()
  return finish({flags})
end

-- update: nothing -> ready | delayed | parked, as add; a job that exists is changed instead
--
-- ARGV   time, caller, number, how (see update_of), groups of jobs (see read_jobs)
-- reply  one letter per job: '1' created; R D P changed, and now ready, delayed or parked; L kept
--        until its lease ends; F failed before, and revived; e ended, and still remembered
--
-- Jobs are taken one after the other, so the same id may come twice. The call is refused if it
-- would change a part of a request.
function transition.update()
  local again = begin()
  if again then return again end

  local groups = read_jobs(args, 5)
  update_of({}, '', args[4])
  check_groups(groups)
  check_types()
  for _, set in ipairs({key.delayed, key.failed, key.ended}) do call('ZCARD', set) end
  for _, hash in ipairs({key.results, key.next}) do call('HLEN', hash) end

  if call('HLEN', key.requests) > 0 then
    local place = 0
    for _, group in ipairs(groups) do
      for i = group.first, group.last, 2 do
        if request_in(args[i]) and call('HEXISTS', key.jobs, args[i]) == 1 then
          refuse('PART', tostring(place))
        end
        place = place + 1
      end
    end
  end

  local letters = update_each(groups, args[4])
  settle_requests()
  return finish({table.concat(letters)})
end

-- tick: nothing -> ready | delayed | parked, for the ticks of a schedule
--
-- ARGV   time, caller, number, schedule, seen ('' = none, '?' = only look), tick,
--        groups of jobs (see read_jobs)
-- reply  the time; the last tick of this schedule before this call ('' = none); '+' and one letter
--        per job (see add), or '' if another scheduler was first
--
-- Any number of schedulers may call. Only a call that presents the last tick may make the next
-- ones, so each tick is made once, even by a scheduler that was frozen for hours between looking
-- and making. A schedule that no call names for 100 days is forgotten.
function transition.tick()
  local again = begin()
  if again then return again end

  local memory = 'tick ' .. name(args[4], 'schedule')
  local tick = whole(args[6], 0, MAX_INSTANT, 'tick')
  local groups = read_jobs(args, 7)
  local last = call('HGET', key.meta, memory)
  last = last and string.find(last, '^%d+$') and last or ''
  check_staging()
  if last ~= args[5] then
    if last ~= '' then heard_of(memory, {}) end
    return finish({this.at, last, ''})
  end

  check_groups(groups)
  local flags = choose(groups)
  create_each(groups)
  settle_requests()
  note(memory, string.format('%d', tick))
  heard_of(memory, {})
  return finish({this.at, last, '+' .. flags})
end

-- set_result: store or replace the result of a job, whoever runs it or ran it
--
-- ARGV   time, caller, number, id, result
-- reply  '1' stored; '0' no job has this id; 'n' the job keeps no result
function transition.set_result()
  local again = begin()
  if again then return again end

  local id, result = name(args[4], 'id'), args[5]
  if not result or #result > MAX_BYTES then refuse('INVALID', 'result') end
  call('HLEN', key.results)
  call('HLEN', key.requests)

  local flag, facts, request = '0', facts_of(id), request_in(id)
  if call('ZSCORE', key.ended, id) then
    flag = '1'
  elseif call('HEXISTS', key.jobs, id) == 1 then
    flag = (request or (facts.result_for_ms or 0) > 0) and '1' or 'n'
  elseif request then
    flag = '1'  -- A part that has ended.
  end
  if flag == '1' then
    local record = request and request_of(request)
    local new = call('HSET', key.results, id, result)
    if record then
      record.results = record.results + new
      call('HSET', key.requests, request, pack_request(record))
    end
    tell('result', {id})
  end
  return finish({flag})
end

-- cancel: ready | delayed | parked | failed -> gone; leased -> marked, to end as cancelled
--
-- ARGV   time, caller, number, running, ids
-- reply  '1' per id if this call prevents a run of the job, else '0'
--
-- With running '0' a leased job runs on, and only its successor is removed.
function transition.cancel()
  local again = begin()
  if again then return again end

  local n = #args - 4
  if n < 1 or n > MAX_JOBS then refuse('INVALID', 'ids') end
  for i = 5, #args do name(args[i], 'id') end
  check_types()
  for _, set in ipairs({key.delayed, key.failed, key.ended}) do call('ZCARD', set) end
  call('HLEN', key.results)

  local flags = {}
  for i = 1, n do flags[i] = cancel_job(args[i + 4], args[4] == '1') and '1' or '0' end
  settle_requests()
  return finish({table.concat(flags)})
end

-- cancel_matching: cancel the jobs with this payload, among some ids
--
-- ARGV   time, caller, number, running, payload, set (1…), place in it ('' = its end), how many
--        ids to look at
-- reply  how many were cancelled, next set (0 = done), next place (0 = its end)
--
-- Walks ids, and compares lengths before bytes, so that few payloads are read. `leased` is walked
-- first and last, because jobs move into it and out of it during the walk.
function transition.cancel_matching()
  local again = begin()
  if again then return again end

  local SETS = {key.leased, key.delayed, key.parked, key.ready, key.failed, key.leased}
  local running, payload = args[4] == '1', args[5]
  local index = whole(args[6], 1, #SETS, 'set')
  local from = args[7] ~= '' and whole(args[7], 0, MAX_INSTANT, 'place')
  local budget = whole(args[8], 1, MAX_JOBS, 'count')
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

  -- How many of these ids, from the end, this call can look at: every payload of the same length
  -- must be read.
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
end

-- revive: failed -> ready | parked, behind its equals, as if it had never run
--
-- ARGV   time, caller, number, ids
-- reply  '1' or '0' per id
--
-- Reviving a part of an ended request reopens the request. A part of a request that is being
-- stopped is not revived.
function transition.revive()
  local again = begin()
  if again then return again end

  local n = #args - 3
  if n < 1 or n > MAX_JOBS then refuse('INVALID', 'ids') end
  for i = 4, #args do name(args[i], 'id') end
  check_types()
  call('ZCARD', key.failed)
  call('ZCARD', key.delayed)

  local flags, revived = {}, {}
  for i = 1, n do
    local id = args[i + 3]
    local facts = facts_of(id)
    local record = facts.request and request_of(facts.request)
    flags[i] = '0'
    if not (record and record.stopping > 0) and call('ZREM', key.failed, id) == 1 then
      local priority = facts.priority or 50
      count(facts, 'failed', -1)
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
end
