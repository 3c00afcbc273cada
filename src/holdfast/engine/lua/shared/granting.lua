-- maintaining: promote due jobs, reclaim lapsed leases, forget old endings, process requests and
-- `staging`
--
-- `overdue` only reads, so it is called before the first write; it also checks the types of what
-- `maintain` will write.

-- The earliest time in a set.
local function first_time_in(set)
  return tonumber(call('ZRANGE', set, 0, 0, 'WITHSCORES')[2]) or math.huge
end

-- Returns which of delayed, leased, ended, terms and staging have something to move; false if none
-- of them has. surely: look at the sets even if `tend_at` says that nothing is due.
--
-- No time in these sets is earlier than `tend_at`, whatever the clock does: whoever writes a time
-- lowers it, and whoever looks sets it to the earliest time. But workers of release 0.1 write times
-- without it. So it is never set to more than a second from now, and not believed if it is later
-- than that, as it is when the clock was set back.
local function overdue(surely, force)
  local now, at = this.now, this.tend_at
  if force then this.lapsed_by = now end
  local found = {staging = this.staging and this.staging <= now}
  if surely or not (at and now < at and at <= now + 1000) then
    local delayed, leased = first_time_in(key.delayed), first_time_in(key.leased)
    local ended, terms = first_time_in(key.ended), first_time_in(key.terms)
    -- What is due now is moved by this call; the next one looks again.
    this.tend_at = math.min(delayed, leased, ended, terms, after_ms(1000))
    found.delayed, found.leased = delayed <= now, leased <= this.lapsed_by
    found.ended, found.terms = ended <= now, terms <= now
  end
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
      local record = count(facts, 'total', 0)
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

-- ------------------------------------------------------------------- granting

-- Ready | parked | failed -> leased

-- Count one more running job of this owner (by = 1), or one less (-1). Returns whether there was a
-- free place.
local function take_place(record, by, failed)
  if by > 0 and record.limit >= 0 and record.running >= record.limit then return false end
  record.running = record.running + by
  if failed then record.failed = record.failed - by else record.parked = record.parked - by end
  if by > 0 and record.first_at == 0 then record.first_at = this.now end
  return true
end

-- Keep the jobs that fit into one reply; the others go back to where they were.
local function leave_what_fits(ids, ranks, whose, failed)
  local bytes = 0
  for i = 1, #ids do
    local id, record = ids[i], whose[i]
    bytes = bytes + call('HSTRLEN', key.jobs, id)
    if i > 1 and bytes > MAX_BYTES then
      if record then take_place(record, -1, failed) end
      if failed then
        call('ZADD', key.failed, this.now, id)
      elseif record then
        call('ZADD', key.parked, 0, parked_member(id, facts_of(id)))
      else
        call('ZADD', key.ready, ranks[i], id)
      end
      ids[i] = nil
    end
  end
end

-- An id without a payload is not a job: drop it, so that it does not hide the jobs behind it.
-- Returns how many were dropped.
local function drop_ghosts(ids, ranks, whose, payloads)
  local kept, n = 0, #ids
  for i = 1, n do
    local id, record = ids[i], whose[i]
    ids[i] = nil
    if payloads[i] then
      kept = kept + 1
      ids[kept], ranks[kept], payloads[kept] = id, ranks[i], payloads[i]
    else
      call('HDEL', key.holds, id)
      if record then
        record.running = record.running - 1
        end_job(id, facts_of(id), 'cancelled')
      else
        call('HDEL', key.facts, id)
      end
    end
  end
  for i = kept + 1, n do payloads[i] = nil end
  return n - kept
end

-- Failed jobs, the longest due first, with ranks that carry their priorities. A job whose request
-- has no free place is looked at again in a second.
local function pop_failed(wanted)
  local ids, ranks, whose = {}, {}, {}
  local due = call('ZRANGE', key.failed, '-inf', this.now, 'BYSCORE', 'LIMIT', 0, wanted)
  for _, id in ipairs(due) do
    local facts = facts_of(id)
    local owner = facts.request or facts.group
    local record = owner and request_of(owner)
    if record and not take_place(record, 1, true) then
      call('ZADD', key.failed, after_ms(1000), id)
    else
      local at = #ids + 1
      ids[at], whose[at] = id, record
      ranks[at] = string.format('%d', rank_of(facts.priority or 50, 0))
      call('ZREM', key.failed, id)
    end
  end
  return ids, ranks, whose
end

local function pop_ready(wanted)
  local found = call('ZPOPMIN', key.ready, wanted)
  local ids, ranks = {}, {}
  for i = 1, #found / 2 do ids[i], ranks[i] = found[2 * i - 1], found[2 * i] end
  return ids, ranks, {}
end

-- The best of `ready` and of the owners that have a turn. An owner that gave a part goes behind its
-- equals, and behind the ready jobs of its priority.
--
-- A call for fewer than eight jobs takes one part at a time. A call for many takes up to four parts
-- of an owner at a time, which is cheaper, as a part costs less than its owner; but not more than a
-- quarter of the jobs, so that each call serves at least four owners.
local function pop_by_turns(wanted)
  local at_a_time = math.max(1, math.min(4, math.floor(wanted / 4)))
  -- How many owners are needed if each gives what it may.
  local step = math.ceil(wanted / at_a_time)
  local ready = call('ZRANGE', key.ready, 0, wanted - 1, 'WITHSCORES')
  -- A turn is an index into `owners`; `at` has its rank.
  local owners, at, records = {}, {}, {}

  -- The first owner, if any, that has not had its turn in this call. Looks up some at a time, and
  -- one more, so that the last of them has the next one behind it.
  local first, fetched, is_last = 1, 0, false
  local function first_turn()
    if first > fetched and not is_last then
      local stop = math.min(fetched + step + 1, wanted)
      local found = call('ZRANGE', key.turns, fetched, stop - 1, 'WITHSCORES')
      for i = 1, #found / 2 do
        owners[fetched + i], at[fetched + i] = found[2 * i - 1], tonumber(found[2 * i])
      end
      fetched = fetched + #found / 2
      is_last = fetched < stop or stop == wanted
    end
    return first <= fetched and first or nil
  end

  -- The others have given parts, and are behind their equals: one line of turns per distance from
  -- the highest priority, each in order. All lines before `best` are empty.
  local lines, best = {}, MAX_PRIORITY + 1
  local function line_up(turn, above, rank)
    local line = lines[above]
    if not line then
      line = {head = 1, last = 0}
      lines[above] = line
    end
    local last = line.last + 1
    line.last, line[last], at[turn] = last, turn, rank
    if above < best then best = above end
  end

  -- The record of an owner. Looks up some at a time.
  local packed, looked_up = {}, 0
  local function record_at(turn)
    local record = records[turn]
    if record == nil then
      if turn > looked_up then
        local before, some = looked_up, {}
        looked_up = math.min(before + step, fetched)
        for i = before + 1, looked_up do some[i - before] = owners[i] end
        for i, its_record in pairs(look_up(some)) do packed[before + i] = its_record end
      end
      record = request_of(owners[turn], packed[turn])
      records[turn] = record
    end
    return record
  end

  -- The next part of an owner. Looks up n parts at a time.
  local waiting, places, passed = {}, {}, {}
  local function next_of(turn, n)
    local found = waiting[turn]
    local member = found and found[places[turn]]
    if not member then
      passed[turn] = found and passed[turn] + #found or 0
      found = parked_of(owners[turn], records[turn], passed[turn], n)
      waiting[turn], places[turn], member = found, 1, found[1]
    end
    return member
  end

  local ids, ranks, whose, members, taken, plain = {}, {}, {}, {}, 0, 0
  local id, rank, texts = ready[1], tonumber(ready[2]), {}
  while taken < wanted do
    local line = lines[best]
    local turn = line and line[line.head]
    while not turn and best <= MAX_PRIORITY do
      best = best + 1
      line = lines[best]
      turn = line and line[line.head]
    end
    local above, next_turn = best, first_turn()
    if next_turn and at[next_turn] < (best + 1) * RANKS then
      turn, above, line = next_turn, math.floor(at[next_turn] / RANKS), nil
    end
    if id and not (turn and at[turn] < rank) then
      plain, taken = plain + 1, taken + 1
      ids[taken], ranks[taken] = id, ready[2 * plain]
      id, rank = ready[2 * plain + 1], tonumber(ready[2 * plain + 2])
    elseif turn then
      if line then line.head = line.head + 1 else first = first + 1 end
      local owner, record = owners[turn], record_at(turn)
      local before, length = taken, #owner
      line, next_turn = lines[above], first_turn()
      local behind = line and line.last - line.head + 1 or 0
      local has_equals = behind > 0 or next_turn and at[next_turn] < (above + 1) * RANKS
      behind = behind + fetched - first + 1
      local grouped, limit = record and record.group == 1, record and record.limit
      -- How many parts it may give before another owner has the turn.
      local alone = not has_equals and not grouped and not (id and rank < (above + 1) * RANKS)
      local most = not record and 0 or alone and wanted or math.min(taken + at_a_time, wanted)
      if record and limit >= 0 then most = math.min(most, taken + limit - record.running) end
      while taken < most do
        local share = alone and wanted - taken or math.ceil((wanted - before) / (behind + 1))
        local member = next_of(turn, math.max(share, math.min(at_a_time, most - taken)))
        if not member then break end
        local found, place = waiting[turn], places[turn]
        local last = math.min(place + most - taken - 1, #found)
        -- The rank for the holds. The facts of a part keep its place, so its rank is only its
        -- priority; and if the first and the last part have the same priority, so have all between
        -- them. A job of a group keeps its whole rank, because it may leave the group while it
        -- runs; and it is not taken before others of a higher priority.
        local prefix = not grouped and string.sub(member, length + 4, length + 5)
        if not prefix or string.sub(found[last], length + 4, length + 5) ~= prefix then
          last = place
        end
        local text = texts[prefix]
        if not text then
          local _, its_rank = read_parked(member)
          if grouped and taken > before and math.floor(its_rank / RANKS) ~= above then break end
          if prefix then its_rank = its_rank - its_rank % RANKS end
          text = string.format('%d', its_rank)
          if prefix then texts[prefix] = text end
        end
        for i = place, last do
          member, taken = found[i], taken + 1
          ids[taken], ranks[taken] = string.sub(member, length + 30), text
          whose[taken], members[taken - plain] = record, member
        end
        local n = last - place + 1
        record.running, record.parked = record.running + n, record.parked - n
        places[turn] = last + 1
      end
      if taken > before then
        if record.first_at == 0 then record.first_at = this.now end
        -- Each job of a group has its own priority.
        local following = grouped and next_of(turn, 1)
        if following then
          local _, its_rank = read_parked(following)
          above = math.floor(its_rank / RANKS)
        end
        line_up(turn, above, above * RANKS + RANKS - 1)
      elseif record and record.turn == 0 then
        record.turn, record.stood = at[turn], at[turn]  -- It gave no part: decide_met removes it.
      end
    else
      break
    end
  end

  if plain > 0 then
    local taken_ids = {}
    for i = 1, plain do taken_ids[i] = ready[2 * i - 1] end
    call('ZREM', key.ready, unpack(taken_ids))
  end
  if taken > plain then call('ZREM', key.parked, unpack(members)) end
  return ids, ranks, whose
end

-- A new number for each owner that gave a part. An owner that gave no part keeps its turn.
local function number_turns(n, whose)
  local parts = 0
  for i = 1, n do
    if whose[i] then parts = parts + 1 end
  end
  if parts == 0 then return end
  redis.pcall('HINCRBY', key.meta, 'requeued', parts)
  local number = take_numbers(parts)
  for i = 1, n do
    local record = whose[i]
    if record then
      number = number + 1
      record.number = number
    end
  end
end

-- Take the best jobs, or failed jobs. Returns ids, ranks, payloads. An owner that gave a part gets
-- a new turn.
local function take_best(wanted, failed)
  local ghosts, pop = 0, pop_ready
  if failed then
    pop = pop_failed
  elseif this.has_requests and call('ZCARD', key.turns) > 0 then
    pop = pop_by_turns
  end
  while true do
    local ids, ranks, whose = pop(wanted)
    if #ids == 0 then return ids, ranks, {} end
    if #ids * this.largest > MAX_BYTES then leave_what_fits(ids, ranks, whose, failed) end
    if pop == pop_by_turns then number_turns(#ids, whose) end
    local payloads, sound = call('HMGET', key.jobs, unpack(ids)), true
    for i = 1, #ids do sound = sound and payloads[i] end
    if not sound then ghosts = ghosts + drop_ghosts(ids, ranks, whose, payloads) end
    if #ids > 0 or ghosts >= MAX_JOBS then return ids, ranks, payloads end
  end
end

local function grant_all(ids, ranks, token, lapses_at)
  local n, until_ = #ids, string.format('%d', lapses_at)
  local before_rank = token .. ' ' .. this.at .. ' '
  local leased, holds, rank, hold = {}, {}, nil, nil
  for i = 1, n do
    local id = ids[i]
    if ranks[i] ~= rank then  -- Parts of a request share one.
      rank = ranks[i]
      hold = before_rank .. rank
    end
    leased[2 * i - 1], leased[2 * i] = until_, id
    holds[2 * i - 1], holds[2 * i] = id, hold
  end
  tend_by(lapses_at)
  if n > 16 then
    -- The server keeps a small set as a list, and searches it from end to end. A member longer than
    -- 64 bytes (and than any id) turns it into a table, and it stays one.
    local long = string.rep('-', MAX_NAME + 1)
    call('ZADD', key.leased, 0, long, unpack(leased))
    call('ZREM', key.leased, long)
    call('HSET', key.holds, long, '', unpack(holds))
    call('HDEL', key.holds, long)
  else
    call('ZADD', key.leased, unpack(leased))
    call('HSET', key.holds, unpack(holds))
  end
  tell('leased', ids)
end

local function has_more()
  return call('ZCARD', key.ready) > 0 or this.has_requests and call('ZCARD', key.turns) > 0
end
