-- ending: what happens to a job whose lease ends. Call check_types first.

-- -> gone. Its result is kept as long as its request, and so is an ending other than completed.
local function end_part(id, facts, outcome, result)
  local counter = outcome == 'completed' and 'done' or outcome == 'failed' and 'handled'
  local record = count(facts, counter or 'cancelled', 1)
  call('HDEL', key.jobs, id)
  if outcome == 'completed' or not record then
    call('HDEL', key.facts, id)
    if result and record then
      record.results = record.results + call('HSET', key.results, id, result)
    end
  else
    local failed = outcome == 'failed'
    set_facts(id, {
      request = facts.request, outcome = outcome, ended_at = this.now,
      error = failed and facts.error or nil, raised = failed and facts.raised or nil,
    })
    record.results = record.results - call('HDEL', key.results, id)
  end
end

-- -> gone, or its ending remembered. Its successor becomes a job.
local function end_job(id, facts, outcome, result)
  if facts.request then return end_part(id, facts, outcome, result) end
  count(facts, 'total', -1)
  local result_for = facts.result_for_ms or 0
  local remember_for = outcome == 'completed' and facts.remember_for_ms or 0
  local successor = take_successor(id)
  if successor or result_for == 0 and remember_for == 0 then
    call('HDEL', key.jobs, id)
    call('HDEL', key.facts, id)
    call('HDEL', key.results, id)
    if successor then become(id, successor) end
    return
  end
  local keep = facts.keep and result_for > 0 or nil
  if not keep then call('HDEL', key.jobs, id) end
  if result_for > 0 and result then call('HSET', key.results, id, result) end
  set_facts(id, {
    outcome = outcome, ended_at = this.now, keep = keep,
    error = outcome == 'failed' and facts.error or nil,
    raised = outcome == 'failed' and facts.raised or nil,
    taken_until = remember_for > 0 and after_ms(remember_for) or nil,
  })
  local forget_at = after_ms(math.max(result_for, remember_for))
  call('ZADD', key.ended, forget_at, id)
  tend_by(forget_at)
end

-- Read the facts of many jobs, equal ones only once; the caller must not change them. Looks up the
-- requests that they name. Returns the facts and the packed records, by the bytes of the facts.
local function read_alike(found)
  local known, kept, owners, alike = {}, {}, {}, {}
  for i = 1, #found do
    local packed = found[i]
    if not known[packed] then
      local facts = read_facts(packed)
      local owner = facts.request or facts.group
      known[packed] = facts
      if owner then
        local at = #owners + 1
        owners[at], alike[at] = owner, packed
      end
    end
  end
  local packed = look_up(owners)
  for i = 1, #packed do kept[alike[i]] = packed[i] end
  return known, kept
end

-- Complete jobs one by one, because each may have facts, a successor or a request.
local function complete_each(ids, numbers, flags, results, out, all_leased)
  local completed, cancelled, gone, n, m, now = {}, {}, {}, 0, 0, this.now
  local found = call('HMGET', key.facts, unpack(ids))
  local known, kept = read_alike(found)
  local whose, is_easy = {}, {}
  for i = 1, #ids do
    local id, packed, number = ids[i], found[i], numbers[i]
    local facts, record = known[packed], whose[packed]
    if record == nil then
      local owner = facts.request or facts.group
      record = owner and request_of(owner, kept[packed]) or false
      whose[packed] = record
      is_easy[packed] = not (facts.cancelled or facts.result_for_ms or facts.remember_for_ms
        or this.has_next or facts.group or facts.failed_at)
    end
    if record and not out[id] and (all_leased or not unpark(id, facts)) then
      record.running, record.last_at = record.running - 1, now
    end
    if is_easy[packed] and not (record and (record.stopping > 0 or results[number])) then
      n, m = n + 1, m + 1
      gone[n], completed[m] = id, id
      if record then record.done = record.done + 1 end
    else
      if facts.cancelled
        or record and record.stopping > 0 and facts.request and not facts.failed_at then
        flags[number] = '0'
        cancelled[#cancelled + 1] = id
        end_job(id, facts, 'cancelled')
      else
        m = m + 1
        completed[m] = id
        -- A failed job that its failure handler completed is still a failure for clients that wait
        -- for its result.
        end_job(id, facts, facts.failed_at and 'failed' or 'completed', results[number])
      end
    end
  end
  if n > 0 then
    call('HDEL', key.jobs, unpack(gone))
    call('HDEL', key.facts, unpack(gone))
  end
  tell('completed', completed)
  tell('cancelled', cancelled)
  return m > 0
end

-- leased (or waiting again after a reclaim) -> gone, or its ending remembered. numbers: which
-- settle each id came from; results: number of the settle -> bytes; out: ids that were taken out of
-- their sets before. A job that was cancelled in the meantime ends as cancelled: its flag becomes
-- '0'. Returns whether any job was completed.
local function complete(ids, numbers, flags, results, out)
  local n = #ids
  if n == 0 then return false end
  -- A job that is not leased was reclaimed: it must not stay where it waits.
  local all_leased = call('ZREM', key.leased, unpack(ids)) == n
  -- A key of another type, which the call may not have looked at, has none of them.
  if not all_leased then redis.pcall('ZREM', key.ready, unpack(ids)) end
  call('HDEL', key.holds, unpack(ids))
  if this.has_facts or this.has_next then
    return complete_each(ids, numbers, flags, results, out, all_leased)
  end
  call('HDEL', key.jobs, unpack(ids))
  tell('completed', ids)
  return true
end

-- The jobs that may be completed by force: each id with a payload that has not ended, once. Jobs
-- that are not leased are taken out of their sets. Returns ids, which settle each came from, '1' or
-- '0' per settle, and which ids were taken out.
local function standing(groups)
  local ids, flags, numbers, taken, out = {}, {}, {}, {}, {}
  for _, group in ipairs(groups) do
    for i = group.first, group.last do
      local id = args[i]
      local there = not taken[id] and call('HEXISTS', key.jobs, id) == 1
        and not call('ZSCORE', key.ended, id)
      taken[id] = true
      flags[#flags + 1] = there and '1' or '0'
      if there then
        ids[#ids + 1], numbers[#numbers + 1] = id, #flags
        out[id] = not call('ZSCORE', key.leased, id) and take_out(id, facts_of(id))
      end
    end
  end
  return ids, numbers, flags, out
end

-- The jobs that a call completes. Returns ids, which settle each came from, '1' or '0' per settle,
-- and which ids were taken out of their sets.
local function to_complete(groups, force)
  if force then return standing(groups) end
  local ids, _, numbers, flags = held(groups)
  return ids, numbers, flags, {}
end

-- Fails, before the first write, if a key that an ending needs has the wrong type.
local function check_endings()
  for _, set in ipairs({key.delayed, key.failed, key.ended}) do call('ZCARD', set) end
  call('HLEN', key.results)
  call('HLEN', key.requests)
end

-- A free id for a failed job whose successor takes its id: '<id>~<number>', short enough to be a
-- name, and not cut inside a character.
local function filed_id(id)
  local cut = math.min(#id, MAX_NAME - 16)
  while (string.byte(id, cut + 1) or 0) >= 128 and string.byte(id, cut + 1) < 192 do
    cut = cut - 1
  end
  local filed
  repeat
    redis.pcall('HINCRBY', key.meta, 'requeued', 1)
    filed = string.sub(id, 1, cut) .. string.format('~%d', take_numbers(1) + 1)
  until is_free(filed, true)
  return filed
end

-- leased -> failed, where a failure handler may have it from this time on. If the id has a
-- successor, the successor takes the id, and the failed job is filed under '<id>~<number>'.
local function put_failed(id, hold, facts, at)
  local priority = priority_in(hold)
  facts.priority = priority ~= 50 and priority or nil
  local is_new = not facts.failed_at  -- It was not with a failure handler.
  facts.failed_at = facts.failed_at or this.now
  local filed, successor = id, take_successor(id)
  if successor then
    local result = call('HGET', key.results, id)
    filed = filed_id(id)
    call('HSET', key.jobs, filed, call('HGET', key.jobs, id) or '')
    call('HDEL', key.facts, id)
    call('HDEL', key.results, id)
    if result then call('HSET', key.results, filed, result) end
    become(id, successor)
  end
  set_facts(filed, facts)
  call('ZADD', key.failed, at, filed)
  tell('failed', {filed})
  local record = count(facts, 'failed', 1)
  local open = record and record.stopping + record.outcome == 0
  if is_new and open and record.fail_fast == 1 then
    record.stopping, record.sealed = FAILED, 1
    record.reason = id .. ' failed: ' .. (facts.error or '')
  end
end

-- The failure handler failed: -> failed, to be tried again at this time or, after the last try,
-- kept for a manual decision. limit: how often the handler may try, nil for the limit given before.
local function put_failed_again(id, hold, facts, at, limit)
  limit = limit or facts.max_handlings or MAX_HANDLINGS
  facts.max_handlings = limit ~= MAX_HANDLINGS and limit or nil
  facts.handlings = (facts.handlings or 0) + 1
  if limit >= 0 and facts.handlings > limit then at = SPENT + facts.failed_at end
  put_failed(id, hold, facts, at)
end

-- leased -> ready | delayed | parked, with its successor applied.
local function put_back(id, hold, facts, due_at, to_the_back)
  local rank, priority = rank_in(hold), priority_in(hold)
  local successor = take_successor(id)
  if successor then
    facts, priority, due_at = apply(successor, id, facts, priority, due_at)
    rank = rank_of(priority, rank % RANKS)
    call('HDEL', key.holds, id)  -- The holder ran the old version: it cannot complete this one.
  end
  if to_the_back and due_at <= this.now then rank = nil end
  put_waiting(id, facts, priority, rank, due_at)
end

-- ------------------------------------------------------------------ returning

-- Leases that end without an answer, or are given back. Call check_types first.

-- leased -> ready, at its old rank or behind its equals: for jobs without facts.
local function give_back(ids, holds, to_the_back)
  local n = #ids
  if n == 0 then return end
  local ready, first = {}, to_the_back and take_numbers(n)
  for i = 1, n do
    local rank = rank_in(holds[i])
    if to_the_back then rank = rank_of(MAX_PRIORITY - math.floor(rank / RANKS), first + i) end
    ready[2 * i - 1], ready[2 * i] = rank, ids[i]
  end
  if to_the_back then redis.pcall('HINCRBY', key.meta, 'requeued', n) end
  call('ZADD', key.ready, unpack(ready))
  this.grantable = true
end

-- Runs that did not answer: leased -> ready | delayed | parked | failed, or ended if the job was
-- cancelled. The holds stay, unless the run is known to be over. due_at: 0 for at once, or for the
-- usual wait of a failure handler; handlings: how often a failure handler may try.
local function count_lapses(ids, holds, reason, due_at, to_the_back, over, handlings)
  local again, cancelled = {}, {}
  local found = call('HMGET', key.facts, unpack(ids))
  call('ZREM', key.leased, unpack(ids))
  for i, id in ipairs(ids) do
    local facts, hold = read_facts(found[i]), holds[i]
    local limit = facts.max_lapses or DEFAULT_LAPSES
    local lapses = (facts.lapses or 0) + 1
    local stays = false
    vacate(facts)
    if is_cancelled(facts) then
      cancelled[#cancelled + 1] = id
      end_job(id, facts, 'cancelled')
    elseif facts.failed_at then
      local wait = HANDLING_MS * 2 ^ math.min(facts.handlings or 0, 20)
      local at = due_at > 0 and due_at or after_ms(math.min(wait, MAX_HANDLING_MS))
      put_failed_again(id, hold, facts, at, handlings)
    else
      facts.lapses, facts.error, facts.raised = lapses, reason, nil
      if limit >= 0 and lapses > limit then
        put_failed(id, hold, facts, this.now)
      else
        stays = not over
        again[#again + 1] = id
        put_back(id, hold, facts, due_at, to_the_back)
      end
    end
    if not stays then call('HDEL', key.holds, id) end
  end
  tell('cancelled', cancelled)
  return again
end

-- Give jobs back at no cost, one by one, because each may have facts or a successor. Returns those
-- that wait again.
local function release_each(ids, holds, due_at, to_the_back)
  local again_ids, cancelled = {}, {}
  local found = call('HMGET', key.facts, unpack(ids))
  for i, id in ipairs(ids) do
    local facts = read_facts(found[i])
    vacate(facts)
    if is_cancelled(facts) then
      cancelled[#cancelled + 1] = id
      end_job(id, facts, 'cancelled')
    elseif facts.failed_at then
      put_failed(id, holds[i], facts, math.max(due_at, this.now))
    else
      again_ids[#again_ids + 1] = id
      put_back(id, holds[i], facts, due_at, to_the_back)
    end
  end
  tell('cancelled', cancelled)
  return again_ids
end

-- leased -> ready | delayed | parked at no cost, or ended if the job was cancelled.
local function release_all(ids, holds, due_at, to_the_back)
  call('ZREM', key.leased, unpack(ids))
  call('HDEL', key.holds, unpack(ids))
  if due_at == 0 and not (this.has_facts or this.has_next) then
    give_back(ids, holds, to_the_back)
    tell('released', ids)
  else
    tell('released', release_each(ids, holds, due_at, to_the_back))
  end
end

-- ----------------------------------------------------------------- cancelling

-- Jobs that shall not run again. Call check_types first, and check the types of ended,
-- failed, delayed and results.

-- ready | delayed | parked | failed -> gone, or its ending remembered; leased -> marked, so that it
-- ends as cancelled however its holder settles it. Its successor is removed too, unless
-- leave_successor. Returns whether this call prevents a run.
local function cancel_job(id, running, leave_successor)
  if call('ZSCORE', key.leased, id) then
    local waited = not leave_successor and call('HDEL', key.next, id) == 1
    if waited then book() end
    local facts = running and facts_of(id)
    if not facts or facts.cancelled then return waited end
    facts.cancelled = true
    set_facts(id, facts)
    tell('cancelling', {id})
    return true
  end
  local facts = facts_of(id)
  if not take_out(id, facts) then return false end
  call('HDEL', key.holds, id)
  end_job(id, facts, 'cancelled')
  tell('cancelled', {id})
  return true
end
