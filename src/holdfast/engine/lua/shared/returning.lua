-- returning: leases that end without an answer, or are given back. Call check_types first.

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
