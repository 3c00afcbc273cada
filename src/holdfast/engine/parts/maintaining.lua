-- maintaining: promote what is due, reclaim what lapsed, forget old endings
--
-- `overdue` only reads, so it goes before the first write of a call; it also checks the
-- types of what `maintain` will write.

local function is_due(set)
  return call('ZCOUNT', set, '-inf', this.now) > 0
end

local function overdue(force)
  local found = {
    delayed = is_due(key.delayed), lapsed = is_due(key.leased), old = is_due(key.ended),
  }
  if found.lapsed then call('ZCARD', key.failed) end
  if found.old then call('HLEN', key.results) end
  found.lapsed = found.lapsed and (force or this.now >= this.grace)
  return found
end

local function due(set)
  return call('ZRANGE', set, '-inf', this.now, 'BYSCORE', 'LIMIT', 0, MAX.jobs)
end

-- delayed -> ready, in due order.
local function promote()
  local ids = due(key.delayed)
  local found = call('HMGET', key.facts, unpack(ids))
  local ready, first = {}, sequence(#ids)
  for i, id in ipairs(ids) do
    local facts = read_facts(found[i])
    ready[2 * i - 1], ready[2 * i] = rank_of(facts.priority or 50, first + i), id
    if facts.priority then
      facts.priority = nil
      set_facts(id, facts)
    end
  end
  call('ZREM', key.delayed, unpack(ids))
  call('ZADD', key.ready, unpack(ready))
  this.grantable = true
  tell('promoted', ids)
  return #ids
end

-- leased -> ready. The hold stays: until the job is given out again, its last holder may
-- still complete it.
local function reclaim(to_the_back)
  local ids = due(key.leased)
  if #ids == 0 then return 0 end
  local again, holds = count_lapse(ids, call('HMGET', key.holds, unpack(ids)), 'the lease lapsed')
  give_back(again, holds, to_the_back)
  tell('reclaimed', again)
  return #ids
end

local function prune()
  local ids = due(key.ended)
  for _, hash in ipairs({'results', 'facts', 'jobs'}) do call('HDEL', key[hash], unpack(ids)) end
  call('ZREM', key.ended, unpack(ids))
  tell('pruned', ids)
  return #ids
end

-- Promote, reclaim and prune, at most MAX.jobs of each. Returns how many.
local function maintain(found, to_the_back)
  return found.delayed and promote() or 0, found.lapsed and reclaim(to_the_back) or 0,
    found.old and prune() or 0
end
