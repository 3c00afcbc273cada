-- granting: ready | parked | failed -> leased

-- One more job of this owner runs, or one less. Returns whether there was a place.
local function take_place(record, by, failed)
  if by > 0 and not has_free_place(record) then return false end
  record.running = record.running + by
  if failed then record.failed = record.failed - by else record.parked = record.parked - by end
  if by > 0 and record.first_at == 0 then record.first_at = this.now end
  return true
end

-- Leave those that fit into one reply; the others go back to where they were.
local function leave_what_fits(ids, ranks, owners, failed)
  local bytes = 0
  for i = 1, #ids do
    local id, owner = ids[i], owners[i]
    bytes = bytes + call('HSTRLEN', key.jobs, id)
    if i > 1 and bytes > MAX_BYTES then
      if owner then take_place(request_of(owner), -1, failed) end
      if failed then
        call('ZADD', key.failed, this.now, id)
      elseif owner then
        call('ZADD', key.parked, 0, parked_member(id, facts_of(id)))
      else
        call('ZADD', key.ready, ranks[i], id)
      end
      ids[i] = nil
    end
  end
end

-- An id without a payload is not a job: it is dropped where we meet it, and does not hide
-- the jobs behind it. Returns how many.
local function drop_ghosts(ids, ranks, owners, payloads)
  local kept, n = 0, #ids
  for i = 1, n do
    local id, owner = ids[i], owners[i]
    ids[i], owners[i] = nil, nil
    if payloads[i] then
      kept = kept + 1
      ids[kept], ranks[kept], owners[kept], payloads[kept] = id, ranks[i], owner, payloads[i]
    else
      call('HDEL', key.holds, id)
      if owner then
        local record = request_of(owner)
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

-- Failed jobs, the longest due first, with ranks that tell their priorities. Those of a request
-- that has no free place are looked at again in a second.
local function pop_failed(wanted)
  local ids, ranks, owners = {}, {}, {}
  local due = call('ZRANGE', key.failed, '-inf', this.now, 'BYSCORE', 'LIMIT', 0, wanted)
  for _, id in ipairs(due) do
    local facts = facts_of(id)
    local owner = facts.request or facts.group
    local record = owner and request_of(owner)
    if record and not take_place(record, 1, true) then
      call('ZADD', key.failed, after_ms(1000), id)
    else
      local at = #ids + 1
      ids[at], owners[at] = id, record and owner
      ranks[at] = string.format('%d', rank_of(facts.priority or 50, 0))
      call('ZREM', key.failed, id)
    end
  end
  return ids, ranks, owners
end

local function pop_ready(wanted)
  local found = call('ZPOPMIN', key.ready, wanted)
  local ids, ranks = {}, {}
  for i = 1, #found / 2 do ids[i], ranks[i] = found[2 * i - 1], found[2 * i] end
  return ids, ranks, {}
end

-- The best of `ready` and of those who have a turn, part by part: who gave one goes behind its
-- equals, and behind the jobs that are there.
local function pop_by_turns(wanted)
  local ready = call('ZRANGE', key.ready, 0, wanted - 1, 'WITHSCORES')
  local turns = call('ZRANGE', key.turns, 0, wanted - 1, 'WITHSCORES')
  local owners, at = {}, {}
  -- Who has a turn, by how far below the highest priority, in order; `best` has all before it
  -- empty. Each is known by its number in `owners`, and has a rank in `at`.
  local lines, best = {}, MAX_PRIORITY + 1
  local function line_up(turn, above, rank)
    local line = lines[above]
    if not line then
      line = {head = 1, last = 0}
      lines[above] = line
    end
    line.last = line.last + 1
    line[line.last], at[turn] = turn, rank
    if above < best then best = above end
  end
  for turn = 1, #turns / 2 do
    local rank = tonumber(turns[2 * turn])
    owners[turn] = turns[2 * turn - 1]
    line_up(turn, math.floor(rank / RANKS), rank)
  end
  look_up(owners)

  -- The next part of an owner. Looks up as many as it may be asked for.
  local waiting, passed = {}, {}
  local function next_of(turn, record, n)
    local found, before = waiting[turn], passed[turn] or 0
    if not found or before >= found.last then
      found = parked_of(owners[turn], record, before, n)
      found.given, found.last = before, before + #found
      waiting[turn] = found
    end
    return found[before - found.given + 1]
  end

  local ids, ranks, owned, members, plain, given = {}, {}, {}, {}, 0, 0
  while #ids < wanted do
    while best <= MAX_PRIORITY and not (lines[best] and lines[best].head <= lines[best].last) do
      best = best + 1
    end
    local line, above = lines[best], best
    local turn = line and line[line.head]
    local id, rank = ready[2 * plain + 1], tonumber(ready[2 * plain + 2])
    if id and not (turn and at[turn] < rank) then
      plain = plain + 1
      ids[#ids + 1], ranks[#ids + 1] = id, ready[2 * plain]
    elseif turn then
      local owner, n, taken = owners[turn], wanted - #ids, 0
      line.head = line.head + 1
      local record, alone = request_of(owner), line.head > line.last
      -- As many as it may give before somebody else has the turn.
      local run = alone and record and record.group == 0
      if id and rank < (best + 1) * RANKS then run = false end
      local most = run and n or 1
      local share = alone and n or math.ceil(n / (line.last - line.head + 2))
      while record and taken < most do
        local member = next_of(turn, record, share)
        if not member or not take_place(record, 1, false) then break end
        taken, given, passed[turn] = taken + 1, given + 1, (passed[turn] or 0) + 1
        local text
        if record.group == 0 then
          text = rank_text(member, #owner)
        else
          local _, its_rank = read_parked(member)
          text = string.format('%d', its_rank)  -- It may leave the group while it runs.
        end
        ids[#ids + 1], ranks[#ids + 1] = string.sub(member, #owner + 30), text
        owned[#ids], members[given] = owner, member
      end
      if taken > 0 then
        -- The jobs of a group have priorities of their own.
        local following = record.group == 1 and next_of(turn, record, 1)
        if following then
          local _, its_rank = read_parked(following)
          above = math.floor(its_rank / RANKS)
        end
        line_up(turn, above, above * RANKS + RANKS - 1)
      elseif record and record.turn == 0 then
        record.turn = at[turn]  -- It has nothing to give, so this is taken away.
      end
    else
      break
    end
  end

  if plain > 0 then
    local taken = {}
    for i = 1, plain do taken[i] = ready[2 * i - 1] end
    call('ZREM', key.ready, unpack(taken))
  end
  if given > 0 then call('ZREM', key.parked, unpack(members)) end
  return ids, ranks, owned
end

-- A new number for each owner that gives something of this; who gives nothing has its turn still.
local function number_turns(ids, owners, new_turns)
  local given, last = 0, {}
  for i = 1, #ids do
    if owners[i] then
      given = given + 1
      last[owners[i]] = given
    end
  end
  if given == 0 then return end
  redis.pcall('HINCRBY', key.meta, 'requeued', given)
  local number = take_numbers(given)
  for owner, n in pairs(last) do new_turns[owner] = number + n end
end

-- Take the best, or failed jobs: ids, ranks, payloads. new_turns gets the number of the next turn of
-- each owner that gave something.
local function take_best(wanted, failed, new_turns)
  local ghosts, pop = 0, pop_ready
  if failed then
    pop = pop_failed
  elseif this.has_requests and call('ZCARD', key.turns) > 0 then
    pop = pop_by_turns
  end
  while true do
    local ids, ranks, owners = pop(wanted)
    if #ids == 0 then return ids, ranks, {} end
    if #ids * this.largest > MAX_BYTES then leave_what_fits(ids, ranks, owners, failed) end
    if pop == pop_by_turns then number_turns(ids, owners, new_turns) end
    local payloads, sound = call('HMGET', key.jobs, unpack(ids)), true
    for i = 1, #ids do sound = sound and payloads[i] end
    if not sound then ghosts = ghosts + drop_ghosts(ids, ranks, owners, payloads) end
    if #ids > 0 or ghosts >= MAX_JOBS then return ids, ranks, payloads end
  end
end

local function grant_all(ids, ranks, token, lapses_at)
  local n, hold = #ids, token .. ' ' .. this.at .. ' '
  local leased, holds = {}, {}
  for i = 1, n do
    local id = ids[i]
    leased[2 * i - 1], leased[2 * i] = lapses_at, id
    holds[2 * i - 1], holds[2 * i] = id, hold .. ranks[i]
  end
  if n > 16 then
    -- The server keeps a small set as a list, and searches it from end to end. A member
    -- longer than 64 bytes (and than any id) turns it into a table, which it then stays.
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
