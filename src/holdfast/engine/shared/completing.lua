-- completing: what becomes of a job that ended well. After check_types.

-- Results stand in ARGV as: n, then n times the number of the settle, result.
local function read_results(at)
  local results, bytes = {}, 0
  local n = whole(ARGV[at], 0, MAX_JOBS, 'results')
  for i = at + 1, at + 2 * n, 2 do
    local result = ARGV[i + 1]
    if not result then refuse('INVALID', 'results') end
    results[whole(ARGV[i], 1, MAX_JOBS, 'results')] = result
    bytes = bytes + #result
  end
  if bytes > MAX_BYTES then refuse('INVALID', 'too much for one call') end
  return results, at + 1 + 2 * n
end

-- The ending of a job that wants to be remembered.
local function end_with(id, facts, result)
  local result_for, remember_for = facts.result_for_ms or 0, facts.remember_for_ms or 0
  local keep = facts.keep and result_for > 0 or nil
  if result and result_for > 0 then call('HSET', key.results, id, result) end
  if not keep then call('HDEL', key.jobs, id) end
  set_facts(id, {
    outcome = 'completed', ended_at = this.now, keep = keep,
    taken_until = remember_for > 0 and after_ms(remember_for) or nil,
  })
  call('ZADD', key.ended, after_ms(math.max(result_for, remember_for)), id)
end

-- leased (or waiting again after a reclaim) -> gone, or its ending remembered.
-- numbers: which settle each id came from; results: number of the settle -> bytes.
local function complete(ids, numbers, results)
  if #ids == 0 then return end
  -- What is not leased was reclaimed: it must not stay where it waits.
  if call('ZREM', key.leased, unpack(ids)) < #ids then call('ZREM', key.ready, unpack(ids)) end
  call('HDEL', key.holds, unpack(ids))
  local gone = ids
  if this.has_facts then
    gone = {}
    local found = call('HMGET', key.facts, unpack(ids))
    for i, id in ipairs(ids) do
      local facts = read_facts(found[i])
      if (facts.result_for_ms or 0) > 0 or (facts.remember_for_ms or 0) > 0 then
        end_with(id, facts, results[numbers[i]])
      else
        gone[#gone + 1] = id
      end
    end
    if #gone > 0 then call('HDEL', key.facts, unpack(gone)) end
  end
  if #gone > 0 then call('HDEL', key.jobs, unpack(gone)) end
  tell('completed', ids)
end
