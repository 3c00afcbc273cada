-- returning: jobs that are given or taken back. After check_types and `failed`.

-- A hold is '<token> <leased_at> <rank>', then ' <request>' for a part. Where somebody
-- removed it the job gets the rank of a new one: a broken hold must not stop the queue.
local function rank_in(hold)
  local rank = tonumber(string.match(hold or '', '^%S+ %d+ (%d+)'))
  if rank and rank < 100 * RANKS then return rank end
  redis.pcall('HINCRBY', key.meta, 'requeued', 1)
  return rank_of(50, take_numbers(1) + 1)
end

local function priority_in(hold)
  return MAX_PRIORITY - math.floor(rank_in(hold) / RANKS)
end

-- leased -> ready, at the rank it had or behind its equals.
local function give_back(ids, holds, to_the_back)
  if #ids == 0 then return end
  local ready, first = {}, to_the_back and take_numbers(#ids)
  for i, id in ipairs(ids) do
    local rank = rank_in(holds[i])
    if to_the_back then rank = rank_of(priority_in(holds[i]), first + i) end
    ready[2 * i - 1], ready[2 * i] = rank, id
  end
  if to_the_back then redis.pcall('HINCRBY', key.meta, 'requeued', #ids) end
  call('ZREM', key.leased, unpack(ids))
  call('ZADD', key.ready, unpack(ready))
  this.grantable = true
end

-- A run that did not answer. Returns those that may run again; the others -> failed.
local function count_lapse(ids, holds, reason)
  local again, again_holds, spent, failed = {}, {}, {}, {}
  for i, id in ipairs(ids) do
    local facts = facts_of(id)
    local limit = facts.max_lapses or DEFAULT_LAPSES
    facts.lapses = (facts.lapses or 0) + 1
    facts.error = reason
    if limit >= 0 and facts.lapses > limit then
      local priority = priority_in(holds[i])
      if priority ~= 50 then facts.priority = priority end
      facts.failed_at = this.now
      spent[#spent + 1] = id
      failed[#failed + 1] = this.now
      failed[#failed + 1] = id
    else
      again[#again + 1], again_holds[#again_holds + 1] = id, holds[i]
    end
    set_facts(id, facts)
  end
  if #spent > 0 then
    call('ZREM', key.leased, unpack(spent))
    call('HDEL', key.holds, unpack(spent))
    call('ZADD', key.failed, unpack(failed))
    tell('failed', spent)
  end
  return again, again_holds
end
