-- maintaining: promote due jobs, reclaim lapsed leases, forget old endings, process requests and
-- `staging`
--
-- `overdue` only reads, so it is called before the first write; it also checks the types of what
-- `maintain` will write.

-- Returns which of delayed, leased, ended, terms and staging have something to move; false if none
-- of them has.
local function overdue(force)
  local now = this.now
  if force then this.lapsed_by = now end
  local found = {
    delayed = call('ZCOUNT', key.delayed, '-inf', now) > 0,
    leased = call('ZCOUNT', key.leased, '-inf', this.lapsed_by) > 0,
    ended = call('ZCOUNT', key.ended, '-inf', now) > 0,
    terms = call('ZCOUNT', key.terms, '-inf', now) > 0,
    staging = this.staging and this.staging <= now,
  }
  if found.leased then call('ZCARD', key.failed) end
  if found.terms or found.staging then check_requests() end
  if found.staging then
    call('ZCARD', key.staging)
    for _, hash in ipairs({key.staged, key.ledger, key.claims}) do call('HLEN', hash) end
  end
  return (found.delayed or found.leased or found.ended or found.terms or found.staging) and found
end

-- Promote, reclaim, prune, process requests and `staging`, at most MAX_JOBS of each. Returns how
-- many were promoted, reclaimed, pruned, and processed in `staging`. Committed rows are published
-- if fewer jobs are ready than wanted.
local function maintain(found, to_the_back, wanted)
  local function due(set, by)
    return call('ZRANGE', set, '-inf', by, 'BYSCORE', 'LIMIT', 0, MAX_JOBS)
  end

  -- delayed -> ready | parked, in due order; jobs due at the same time in the order they were
  -- added.
  local function promote()
    local due_now = call('ZRANGE', key.delayed, '-inf', this.now, 'BYSCORE', 'LIMIT', 0, MAX_JOBS,
      'WITHSCORES')
    local ids, jobs = {}, {}
    for i = 1, #due_now / 2 do ids[i] = due_now[2 * i - 1] end
    local packed = call('HMGET', key.facts, unpack(ids))
    for i, id in ipairs(ids) do
      jobs[i] = {id = id, at = tonumber(due_now[2 * i]), facts = read_facts(packed[i])}
    end
    table.sort(jobs, function(a, b)
      if a.at ~= b.at then return a.at < b.at end
      return (a.facts.number or 0) < (b.facts.number or 0)
    end)
    local ready, kept, plain, first = {}, {}, {}, take_numbers(#ids)
    for i, job in ipairs(jobs) do
      local id, facts = job.id, job.facts
      ids[i] = id
      local record = count(facts, field.total, 0)
      if record then
        facts.number, facts.place = first + i, facts.request and record.total - 1 or nil
        park(id, facts)
      else
        ready[#ready + 1], ready[#ready + 2] = rank_of(facts.priority or 50, first + i), id
        facts.priority, facts.number = nil, nil
        facts.request, facts.group, facts.place = nil, nil, nil
      end
      if next(facts) then
        kept[#kept + 1], kept[#kept + 2] = id, cmsgpack.pack(facts)
      else
        plain[#plain + 1] = id
      end
    end
    if #kept > 0 then call('HSET', key.facts, unpack(kept)) end
    if #plain > 0 then call('HDEL', key.facts, unpack(plain)) end
    call('ZREM', key.delayed, unpack(ids))
    if #ready > 0 then
      call('ZADD', key.ready, unpack(ready))
      this.grantable = true
    end
    tell('promoted', ids)
    return #ids
  end

  -- leased -> ready | parked. The hold stays: until the job is given out again, its last holder may
  -- still complete it.
  local function reclaim()
    local ids = due(key.leased, this.lapsed_by)
    if #ids == 0 then return 0 end
    local holds = call('HMGET', key.holds, unpack(ids))
    tell('reclaimed', count_lapses(ids, holds, 'the lease lapsed', 0, to_the_back, false))
    return #ids
  end

  local function prune()
    local ids = due(key.ended, this.now)
    call('HDEL', key.results, unpack(ids))
    call('HDEL', key.facts, unpack(ids))
    call('HDEL', key.jobs, unpack(ids))
    call('ZREM', key.ended, unpack(ids))
    tell('pruned', ids)
    return #ids
  end

  if not found then return 0, 0, 0, 0 end
  if found.terms then tend() end
  local promoted, reclaimed = found.delayed and promote() or 0, found.leased and reclaim() or 0
  return promoted, reclaimed, found.ended and prune() or 0,
    found.staging and tend_staging(wanted, to_the_back) or 0
end
