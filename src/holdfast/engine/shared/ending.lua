-- ending: what becomes of a job whose lease ends. After check_types.

-- -> gone, or its ending remembered. Its successor becomes a job.
local function end_job(id, facts, outcome, result)
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
    taken_until = remember_for > 0 and after_ms(remember_for) or nil,
  })
  call('ZADD', key.ended, after_ms(math.max(result_for, remember_for)), id)
end

-- leased (or waiting again after a reclaim) -> gone, or its ending remembered.
-- numbers: which settle each id came from; results: number of the settle -> bytes. A job
-- that was cancelled meanwhile ends as that: its flag becomes '0'. Returns whether any
-- was completed.
local function complete(ids, numbers, flags, results)
  local n = #ids
  if n == 0 then return false end
  -- What is not leased was reclaimed: it must not stay where it waits.
  if call('ZREM', key.leased, unpack(ids)) < n then call('ZREM', key.ready, unpack(ids)) end
  call('HDEL', key.holds, unpack(ids))
  if not (this.has_facts or this.has_next) then
    call('HDEL', key.jobs, unpack(ids))
    tell('completed', ids)
    return true
  end
  local completed, cancelled, gone = {}, {}, {}
  local found = call('HMGET', key.facts, unpack(ids))
  for i, id in ipairs(ids) do
    local facts = read_facts(found[i])
    if facts.cancelled then
      flags[numbers[i]] = '0'
      cancelled[#cancelled + 1] = id
      end_job(id, facts, 'cancelled')
    else
      completed[#completed + 1] = id
      if facts.result_for_ms or facts.remember_for_ms or this.has_next then
        -- A failure that is dealt with is a failure to who waits for the result.
        end_job(id, facts, facts.failed_at and 'failed' or 'completed', results[numbers[i]])
      else
        gone[#gone + 1] = id
      end
    end
  end
  if #gone > 0 then
    call('HDEL', key.jobs, unpack(gone))
    call('HDEL', key.facts, unpack(gone))
  end
  tell('completed', completed)
  tell('cancelled', cancelled)
  return #completed > 0
end

-- A free id under which a failed job is filed: '<id>~<number>', short enough to be named, and
-- not cut inside a character.
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

-- leased -> failed, where a failure handler may have it at this time. Where the id has a
-- successor, that takes it, and the failed job is filed under '<id>~<number>'.
local function put_failed(id, hold, facts, at)
  local priority = priority_in(hold)
  facts.priority = priority ~= 50 and priority or nil
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
end

-- The failure handler did not manage: -> failed, to be tried again at this time or, when
-- that was the last time, kept for somebody to decide.
local function put_failed_again(id, hold, facts, at)
  facts.handlings = (facts.handlings or 0) + 1
  if facts.handlings > MAX_HANDLINGS then at = SPENT + facts.failed_at end
  put_failed(id, hold, facts, at)
end

-- leased -> ready | delayed; an update that waited is applied.
local function put_back(id, hold, facts, due_at, to_the_back)
  local rank, priority = rank_in(hold), priority_in(hold)
  local successor = take_successor(id)
  if successor then
    facts, priority, due_at = apply(successor, id, facts, priority, due_at)
    rank = rank_of(priority, rank % RANKS)
    call('HDEL', key.holds, id)  -- Who ran what is replaced now cannot complete it.
  end
  if to_the_back and due_at <= this.now then rank = rank_behind(priority) end
  put_waiting(id, facts, priority, rank, due_at)
end
