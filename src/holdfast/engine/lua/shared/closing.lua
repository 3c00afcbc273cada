-- closing: turns and endings of the requests that this call has met. Call check_requests first.

-- Fails, before the first write, if a key that requests need has the wrong type.
local function check_requests()
  for _, set in ipairs({
    key.parked, key.turns, key.terms, key.ready, key.delayed, key.failed, key.ended,
  }) do
    call('ZCARD', set)
  end
  for _, hash in ipairs({key.requests, key.results, key.facts, key.holds, key.jobs}) do
    call('HLEN', hash)
  end
end

local function count_settled(record)
  return record.done + record.failed + record.handled + record.cancelled
end

-- parked | delayed -> gone, for a request that is being stopped. Removes no more parts than fit
-- into one call; later calls go on.
local function empty_request(request, record)
  local budget = this.budget or MAX_JOBS
  local waiting = record.total - count_settled(record) - record.running
  local members = parked_of(request, record, 0, budget)
  local ids = {}
  for i, member in ipairs(members) do ids[i] = read_parked(member) end
  if #ids > 0 then call('ZREM', key.parked, unpack(members)) end
  budget = budget - #ids
  record.parked = record.parked - #ids
  -- Delayed parts are found by their numbers.
  if waiting - #ids > record.parked then
    local last = math.min(record.walked + budget, record.total)
    for number = record.walked, last - 1 do
      local id = part_id(request, number)
      if call('ZREM', key.delayed, id) == 1 then ids[#ids + 1] = id end
    end
    budget = budget - (last - record.walked)
    record.walked = last < record.total and last or 0
  end
  this.budget = budget
  local n = #ids
  if n > 0 then
    local facts, ending = {}, cmsgpack.pack({
      request = request, outcome = 'cancelled', ended_at = this.now,
    })
    for i = 1, n do facts[2 * i - 1], facts[2 * i] = ids[i], ending end
    call('HSET', key.facts, unpack(facts))
    call('HDEL', key.jobs, unpack(ids))
    call('HDEL', key.holds, unpack(ids))
    record.results = record.results - call('HDEL', key.results, unpack(ids))
    record.cancelled = record.cancelled + n
    tell('cancelled', ids)
  end
  set_term(request, waiting > n and this.now or MAX_INSTANT)
end

-- The request is over: publish that once, keep the record for a while, add the follow-up.
local function end_request(request, record)
  record.outcome = record.failed + record.handled > 0 and FAILED or COMPLETED
  if record.stopping > 0 then record.outcome, record.stopping = record.stopping, 0 end
  record.ended_at, record.endings, record.walked = this.now, record.endings + 1, 0
  -- A client that waits for the end asks once a second, and may miss the event.
  set_term(request, after_ms(math.max(record.keep_for_ms, LEAST_KEPT_MS)))
  local follow_up = read_update(call('HGET', key.requests, request .. '/end'))
  if follow_up then
    -- The follow-ups of earlier requests with this name may still exist. After 100 taken ids, take
    -- a new number of the sequence.
    local id, number = request .. string.format('/end/%d', record.endings), record.endings
    local last = number + 100
    while not is_free(id, false) do
      number = number < last and number + 1 or rank_behind(50) % RANKS
      id = request .. string.format('/end/%d', number)
    end
    call('ZREM', key.ended, id)
    call('HDEL', key.results, id)
    if follow_up.after then follow_up.due = after_ms(follow_up.after) end
    become(id, follow_up)
  end
  tell('ended', {request})
end

-- Write pairs, in chunks that fit into one command.
local function write_pairs(command, where, pairs_)
  for first = 1, #pairs_, 2 * MAX_JOBS do
    local last = math.min(first + 2 * MAX_JOBS - 1, #pairs_)
    call(command, where, unpack(pairs_, first, last))
  end
end

local function is_over(record)
  return record.sealed == 1 and record.outcome == 0
    and record.done + record.failed + record.handled + record.cancelled >= record.total
end

-- Decide endings and turns from what was counted since the last decision.
local function decide_met()
  local met, todo, moved, gone = this.met, this.met.todo, {}, {}
  local records, i, owner = met.records, 1, todo[1]
  while owner do
    local record = records[owner]
    if record then
      record.todo = false  -- It may be met again: a follow-up of another may join it.
      if record.stopping > 0 then empty_request(owner, record) end
      if is_over(record) then end_request(owner, record) end
      set_turn(owner, record)
      if record.turn ~= record.stood then moved[#moved + 1] = owner end
    else
      gone[#gone + 1] = owner
    end
    i = i + 1
    owner = todo[i]
  end
  met.todo = {}
  -- Written after all decisions, because a request may get a turn and then lose it.
  local turns, n = {}, 0
  for j = 1, #moved do
    owner = moved[j]
    local record = records[owner]
    local rank = record.turn
    if rank == 0 then
      gone[#gone + 1] = owner
    elseif rank ~= record.stood then
      turns[n + 1], turns[n + 2] = rank, owner
      n = n + 2
    end
    record.stood = rank
  end
  for first = 1, #gone, MAX_JOBS do
    call('ZREM', key.turns, unpack(gone, first, math.min(first + MAX_JOBS - 1, #gone)))
  end
  write_pairs('ZADD', key.turns, turns)
end

-- Decide, and write the records that this call has met.
local function settle_met()
  decide_met()
  local packed, n = {}, 0
  for owner, record in pairs(this.met.records) do
    if record and (record.group == 0 or record.total > 0) then
      packed[n + 1], packed[n + 2] = owner, pack_request(record)
      n = n + 2
    else
      if not is_follow_up(owner) then call('HDEL', key.requests, owner, owner .. '/end') end
      call('ZREM', key.terms, owner)
    end
  end
  write_pairs('HSET', key.requests, packed)
end

local function settle_requests()
  if this.met then settle_met() end
end

-- ended -> forgotten, after what is kept of its parts.
local function forget_request(request, record)
  -- A request is kept as long as it has failed or running parts.
  if record.failed + record.running > 0 then
    set_term(request, after_ms(math.max(record.keep_for_ms, 1000)))
    return
  end
  local last, ids = math.min(record.walked + this.budget, record.total), {}
  for number = record.walked, last - 1 do ids[#ids + 1] = part_id(request, number) end
  if #ids > 0 then
    record.results = record.results - call('HDEL', key.results, unpack(ids))
    record.forgotten = record.forgotten + call('HDEL', key.facts, unpack(ids))
  end
  record.walked, this.budget = last, this.budget - #ids
  if last < record.total then return book() end
  this.met.records[request] = false
  tell('forgotten', {request})
end

-- ended -> forgotten, for a request whose id is to be opened again. It need not be kept any longer,
-- but no call has forgotten it yet. Returns whether it is gone, and whether more of it is left than
-- fits into one call.
local function forget_expired(request, record)
  local forget_at = record.outcome > 0 and call('ZSCORE', key.terms, request)
  if not forget_at or tonumber(forget_at) > this.now or record.failed + record.running > 0 then
    return false, false
  end
  this.budget = this.budget or MAX_JOBS
  forget_request(request, record)
  if this.met.records[request] then return false, true end
  call('HDEL', key.requests, request .. '/end')
  return true, false
end

-- Process requests whose time has come: fail those open for too long, empty those being stopped,
-- forget ended ones.
local function tend()
  this.budget = this.budget or MAX_JOBS
  local due = call('ZRANGE', key.terms, '-inf', this.now, 'BYSCORE', 'LIMIT', 0, this.budget)
  local packed = look_up(due)
  for i, request in ipairs(due) do
    local record = this.budget > 0 and request_of(request, packed[i])
    if record then
      this.budget = this.budget - 1
      if record.outcome > 0 then
        forget_request(request, record)
      elseif record.sealed == 0 and record.group == 0 then
        record.stopping, record.sealed, record.reason = FAILED, 1, 'open for too long'
      elseif record.stopping == 0 then
        set_term(request, MAX_INSTANT)
      end
    end
  end
end
