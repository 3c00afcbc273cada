-- Transitions that mend what another program, or a lost write, has broken.

-- repair: look at some ids and repair every broken invariant
--
-- ARGV   time, caller, number, stage (1…), place ('' = its begin), how many ids to look at
-- reply  what was done (id, what, id, what, …), next stage (0 = done), next place
--
-- First the sets are walked, requests and claims before jobs, and each from its end; then the
-- hashes. A job that has a payload is never dropped: if it is in no set, it becomes ready or parked
-- again. Repair may run at any time, beside workers and other repairs.
function transition.repair()
  -- A broken sequence continues with the time in ms, which is above every number given before.
  local broken = redis.pcall('HGET', key.meta, 'sequence')
  if type(broken) == 'string' and not string.find(broken, '^%d+$') then
    call('HSET', key.meta, 'sequence', args[1] ~= '' and args[1] or call('TIME')[1] * 1000)
  end

  local again = begin()
  if again then return again end
  if not redis.acl_check_cmd('HSCAN', key.jobs, '0') then refuse('NOPERM', 'HSCAN') end

  local SETS = {
    'terms', 'turns', 'staging', 'ready', 'delayed', 'leased', 'parked', 'failed', 'ended',
  }
  local SET_KEYS = {
    key.terms, key.turns, key.staging, key.ready, key.delayed, key.leased, key.parked, key.failed,
    key.ended,
  }
  local NOT_BY_ID = {terms = true, turns = true, staging = true}
  -- If two sets have an id, the set with the lower number here keeps it.
  local KEEPS = {leased = 1, parked = 2, ready = 3, delayed = 4, failed = 5, ended = 6}
  local HASH_KEYS = {
    key.jobs, key.holds, key.facts, key.next, key.results, key.requests, key.ledger, key.staged,
    key.claims,
  }
  local OF_LEDGER = {[key.ledger] = true, [key.staged] = true, [key.claims] = true}

  local stage = whole(args[4], 1, #SETS + #HASH_KEYS, 'stage')
  local from = args[5]
  local budget = whole(args[6], 1, MAX_JOBS, 'count')
  if from ~= '' then whole(from, 0, MAX_INSTANT, 'place') end
  check_types()
  check_requests()
  check_staging()
  local given = tonumber(call('HGET', key.meta, 'sequence') or 0)

  local done = {}
  local function did(id, what) done[#done + 1], done[#done + 2] = id, what end

  local function drop(id)
    for _, hash in ipairs({key.jobs, key.holds, key.facts, key.next, key.results}) do
      call('HDEL', hash, id)
    end
  end

  -- The record of a request or group. A group that counts 0 jobs is kept until it is counted again.
  local function record_of(owner)
    local record = request_of(owner)
    if record and record.group == 1 then record.total = math.max(record.total, 1) end
    return record
  end

  -- Whether this id was a part of a request that still exists: then its ending and result are kept.
  local function is_ended_part(id, facts)
    local request = facts.request or string.match(id, '^(.*)/%d+$')
    return request and request_of(request)
  end

  -- nothing -> ready | parked, at the rank in its hold; or failed, or ended, if its facts say so.
  -- Returns the word for its new state.
  local function file(id)
    local facts, hold = facts_of(id), call('HGET', key.holds, id)
    facts.outcome, facts.ended_at, facts.taken_until = nil, nil, nil
    if facts.cancelled then
      call('HDEL', key.holds, id)
      end_job(id, facts, 'cancelled')
      return 'cancelled'
    end
    if facts.failed_at then
      call('HDEL', key.holds, id)
      set_facts(id, facts)
      call('ZADD', key.failed, this.now, id)
      return 'failed'
    end
    local rank = tonumber(string.match(hold or '', '^%S+ %d+ (%d+)'))
    if rank and rank % RANKS <= given and rank < 100 * RANKS then
      -- As after a reclaim, its last holder may still complete it.
      put_waiting(id, facts, MAX_PRIORITY - math.floor(rank / RANKS), rank, 0)
    else
      call('HDEL', key.holds, id)
      put_waiting(id, facts, facts.priority or 50, nil, 0)
    end
    return (facts.request or facts.group) and 'parked' or 'ready'
  end

  -- The member of a job in `parked`; '' if it has no request or group.
  local function parked_name(id, facts)
    return (facts.request or facts.group) and parked_member(id, facts) or ''
  end

  local function is_elsewhere(id, set, facts)
    for i, other in ipairs(SETS) do
      local member = id
      if other == 'parked' then member = parked_name(id, facts) end
      if (KEEPS[other] or 9) < KEEPS[set] and call('ZSCORE', SET_KEYS[i], member) then
        return true
      end
    end
    return false
  end

  local function mend_facts(id, set)
    local facts, sound = read_facts(call('HGET', key.facts, id))
    local function clear(...)
      for _, fact in ipairs({...}) do
        sound = sound and facts[fact] == nil
        facts[fact] = nil
      end
    end
    if set ~= 'ended' then clear('outcome', 'ended_at', 'taken_until') end
    if set ~= 'failed' and set ~= 'leased' then clear('failed_at', 'handlings') end
    if set == 'failed' and not facts.failed_at then
      facts.failed_at, sound = this.now, false
    end
    if facts.request or facts.group then
      if not record_of(facts.request or facts.group) then clear('request', 'group') end
    end
    if not (facts.request or facts.group) and set ~= 'delayed' then
      clear('number')
      if not facts.failed_at then clear('priority') end
    end
    if not sound then
      set_facts(id, facts)
      did(id, 'facts mended')
    end
    return facts
  end

  -- A request without a record is forgotten; its remaining parts become plain jobs.
  local function mend_request(request)
    local record = record_of(request)
    if not record then return did(request, 'request forgotten, as it has no record') end
    local parked, is_over = count_parked(request), count_settled(record) >= record.total
    if parked ~= record.parked then
      record.parked = parked
      did(request, 'parked parts counted anew')
    end
    if parked > 0 and record.outcome > 0 then
      reopen(request, record)
      did(request, 'goes on, as parts of it wait')
    end
    if parked > 0 and record.sealed == 1 and is_over then
      -- It must not end before its parts are counted again.
      record.done = record.total - (count_settled(record) - record.done) - 1
    elseif record.sealed == 1 and is_over and record.outcome == 0 then
      return did(request, 'ended, as it is over')
    end
    local turn, said = tonumber(call('ZSCORE', key.turns, request) or 0), record.turn
    record.turn, record.stood, record.number = turn, turn, said % RANKS
    set_turn(request, record)
    if record.turn ~= turn or said ~= turn then did(request, 'turn mended') end
  end

  local function mend_turn(owner)
    if not request_of(owner) then did(owner, 'turn dropped, as there is no such request') end
  end

  -- The time in `terms` for a request that has lost it.
  local function term_of(record)
    if record.outcome > 0 then
      local keep_for = math.max(record.keep_for_ms, LEAST_KEPT_MS)
      return math.min(record.ended_at + keep_for, MAX_INSTANT)
    end
    return record.stopping > 0 and this.now or MAX_INSTANT
  end

  -- An entry of `staging` without a record is dropped; an entry with a wrong time gets a new one.
  local function mend_entry(entry, score)
    local kept, at = entry_of(entry), tonumber(score)
    if not kept then
      strike(entry)
      return did(entry, 'dropped, as it has no record')
    end
    local list = string.find(entry, '^attempt ') and kept.of
    if list and call('HEXISTS', key.ledger, list) == 0 then
      kept.of = nil
      enter(entry, kept, time_of(entry, kept))
      return did(entry, 'adopted by nobody: now to be forgotten')
    end
    if string.find(entry, '^attempt ') and not list then
      local chunks = 0
      while chunks < number_in(kept, 'chunks')
        and call('HEXISTS', key.staged, chunk_field(string.sub(entry, 9), chunks)) == 1 do
        chunks = chunks + 1
      end
      if chunks ~= number_in(kept, 'chunks') then
        kept.chunks = chunks
        enter(entry, kept, at)
        return did(entry, 'chunks counted anew, as some are lost')
      end
    end
    local is_commit = string.find(entry, '^commit ')
    if is_commit and (at < 0) ~= not kept.published_at or list and at < MAX_INSTANT then
      enter(entry, kept, time_of(entry, kept))
      did(entry, 'given a new time')
    end
  end

  -- A record of the ledger that `staging` lacks, or a chunk that no record knows.
  local function adopt_entry(entry, hash)
    if hash == key.ledger then
      local kept = entry_of(entry)
      if call('ZSCORE', key.staging, entry) then return end
      if not kept then
        strike(entry)
        return did(entry, 'dropped, as it cannot be read')
      end
      enter(entry, kept, time_of(entry, kept))
      return did(entry, 'seen to again')
    end
    if hash == key.claims then
      local n, chunk, reader = string.match(entry, '^(%d+)/(%d+) (.*)$')
      local kept = n and entry_of('claim ' .. n .. ' ' .. reader) or {}
      chunk = tonumber(chunk)
      if not chunk or chunk < number_in(kept, 'first') or chunk >= #sizes_in(kept) then
        call('HDEL', key.claims, entry)
        book()
        did(entry, 'dropped, as there is no such claim')
      end
      return
    end
    local attempt, number = string.match(entry, '^(.*)/(%d+)$')
    local kept = attempt and entry_of('attempt ' .. attempt) or {}
    number = tonumber(number)
    if not number or number < number_in(kept, 'first') or number >= number_in(kept, 'chunks') then
      call('HDEL', key.staged, entry)
      book()
      did(entry, 'dropped, as no attempt has it')
    end
  end

  local function give_time(id, set_key)
    call('ZADD', set_key, this.now, id)
    tend_by(this.now)
    did(id, 'given a new time')
  end

  local function mend(member, score, set, set_key)
    if set == 'terms' then return mend_request(member) end
    if set == 'staging' then return mend_entry(member, score) end
    if set == 'turns' then return mend_turn(member) end
    local id = member
    if set == 'parked' then id, score = read_parked(member) end
    local before = facts_of(id)
    score = tonumber(score)
    local whole_score = score >= 0 and score <= MAX_INSTANT and score % 1 == 0
    if is_elsewhere(id, set, before) then
      call('ZREM', set_key, member)
      return did(id, 'taken out of ' .. set .. ', as another set has it')
    end
    local has_payload = call('HEXISTS', key.jobs, id) == 1
    local facts = mend_facts(id, set)
    local owner = facts.request or facts.group
    if set == 'parked' and has_payload and not (owner and parked_member(id, facts) == member) then
      call('ZREM', set_key, member)
      if owner and call('ZSCORE', key.parked, parked_member(id, facts)) then
        return did(id, 'taken out of parked, where it stands twice')
      end
      return did(id, 'parked where its facts do not say: now ' .. file(id))
    end
    if set == 'ready' and has_payload and owner then
      call('ZREM', set_key, member)
      return did(id, 'a part, but not parked: now ' .. file(id))
    end
    local hold = call('HGET', key.holds, id)
    local sound = hold and string.find(hold, '^%S+ %d+ %d+')
    if hold and (not sound or set ~= 'leased' and set ~= 'ready' and set ~= 'parked') then
      call('HDEL', key.holds, id)
      did(id, 'hold dropped')
    end
    if set == 'ended' then
      if facts.outcome and has_payload == (facts.keep or false) then
        return whole_score or give_time(id, set_key)
      end
      call('ZREM', set_key, id)
      if has_payload and not facts.outcome then
        return did(id, 'ended without an outcome: now ' .. file(id))
      end
      drop(id)
      return did(id, 'ending forgotten, as it was not whole')
    end
    if not has_payload then
      call('ZREM', set_key, member)
      if owner then
        if set == 'leased' then vacate(facts) end
        if set == 'failed' then count(facts, 'failed', -1) end
        end_job(id, facts, 'cancelled')
      else
        drop(id)
      end
      return did(id, 'dropped, as it has no payload')
    end
    if call('HEXISTS', key.results, id) == 1 and not (facts.result_for_ms or facts.request) then
      call('HDEL', key.results, id)
      did(id, 'result dropped, as nobody wants it')
    end
    if facts.cancelled and set ~= 'leased' then
      cancel_job(id, true)
      return did(id, 'ended, as it was cancelled')
    end
    if set == 'leased' and (not sound or is_claimed_by_nobody(hold)) then
      call('ZREM', set_key, id)
      vacate(facts)
      return did(id, 'leased without a hold: now ' .. file(id))
    end
    local was_given = whole_score and score % RANKS <= given and score < 100 * RANKS
    if set == 'ready' and not was_given then
      call('ZADD', set_key, rank_behind(50), id)
      did(id, 'given a new rank')
    elseif set == 'parked' and not was_given then
      call('ZREM', set_key, member)
      facts.number = nil
      put_waiting(id, facts, facts.priority or 50, nil, 0)
      did(id, 'given a new rank')
    elseif not whole_score then
      give_time(id, set_key)
    end
    if set ~= 'leased' and call('HEXISTS', key.next, id) == 1 then
      local successor = take_successor(id)
      if successor then change(id, successor) end
      did(id, successor and 'successor applied' or 'successor dropped, as it cannot be read')
    end
  end

  -- An entry of a hash whose id is in no set, or a successor of a job that has ended.
  local function adopt(id, hash)
    if OF_LEDGER[hash] then return adopt_entry(id, hash) end
    local facts = facts_of(id)
    if hash == key.requests then
      local request = string.match(id, '^(.*)/end$') or id
      if not call('ZSCORE', key.terms, request) then
        local record = record_of(request)
        if record then
          set_term(request, term_of(record))
          did(request, 'request tended again')
          return mend_request(request)
        end
        call('HDEL', key.requests, id)
        did(id, 'dropped, as there is no such request')
      end
      return
    end
    for i, set in ipairs(SET_KEYS) do
      local member = id
      if SETS[i] == 'parked' then member = parked_name(id, facts) end
      local passed = hash == key.next and SETS[i] == 'ended' or NOT_BY_ID[SETS[i]]
      if not passed and call('ZSCORE', set, member) then return end
    end
    if hash == key.jobs then return did(id, 'in no set: now ' .. file(id)) end
    if hash ~= key.next and call('HEXISTS', key.jobs, id) == 1 then return end
    if (hash == key.facts or hash == key.results) and is_ended_part(id, facts) then return end
    local successor = hash == key.next and take_successor(id)
    if successor then
      call('ZREM', key.ended, id)
      drop(id)
      become(id, successor)
      return did(id, 'successor of no job: a job now')
    end
    call('HDEL', hash, id)
    did(id, 'dropped, as there is no such job')
  end

  if stage <= #SETS then
    local set, set_key = SETS[stage], SET_KEYS[stage]
    local stop = math.min(tonumber(from) or math.huge, call('ZCARD', set_key)) - 1
    local start = math.max(0, stop - budget + 1)
    local found = stop >= 0 and call('ZRANGE', set_key, start, stop, 'WITHSCORES') or {}
    for i = 1, #found, 2 do mend(found[i], found[i + 1], set, set_key) end
    from = start > 0 and string.format('%d', start) or ''
  else
    -- HSCAN returns the values too, so it asks for no more than fit into one call.
    local fits = math.floor(MAX_BYTES / math.max(this.largest, 1024 * 1024))
    local hash = HASH_KEYS[stage - #SETS]
    local found = call('HSCAN', hash, from ~= '' and from or '0', 'COUNT', math.min(budget, fits))
    for i = 1, #found[2], 2 do adopt(found[2][i], hash) end
    from = found[1] ~= '0' and found[1] or ''
  end
  local first = tonumber(call('ZRANGE', key.staging, 0, 0, 'WITHSCORES')[2])
  if first and not (this.staging and this.staging <= first) then
    see_to_it(first)
    did('', 'what is staged is seen to in time')
  end
  if call('LLEN', key.wake) > 1 then
    call('UNLINK', key.wake)
    this.asleep, this.grantable = true, true
    did('', 'wake tokens reduced to one')
  end
  if from == '' then stage = stage + 1 end
  settle_requests()
  return finish({done, stage <= #SETS + #HASH_KEYS and stage or 0, from})
end

-- recount: set the counters of requests to what the caller has counted
--
-- ARGV   time, caller, number, stamp (see audit), then per request or group: its name, how many
--        of its jobs are leased, failed, parked, delayed; how many of its parts are on record as
--        handled, cancelled; how many have a result
-- reply  '1'; '0' when the queue has changed since they were counted
function transition.recount()
  local again = begin()
  if again then return again end

  local tallies = {}
  for at = 5, #args, 8 do
    tallies[#tallies + 1] = {
      owner = owner_name(args[at]),
      running = whole(args[at + 1], 0, MAX_INSTANT, 'running'),
      failed = whole(args[at + 2], 0, MAX_INSTANT, 'failed'),
      parked = whole(args[at + 3], 0, MAX_INSTANT, 'parked'),
      delayed = whole(args[at + 4], 0, MAX_INSTANT, 'delayed'),
      handled = whole(args[at + 5], 0, MAX_INSTANT, 'handled'),
      cancelled = whole(args[at + 6], 0, MAX_INSTANT, 'cancelled'),
      results = whole(args[at + 7], 0, MAX_INSTANT, 'results'),
    }
  end
  if #tallies > MAX_JOBS then refuse('INVALID', 'requests') end
  check_types()
  check_requests()
  if stamp() ~= args[4] then return finish({'0'}) end

  local changed = {}
  for _, tally in ipairs(tallies) do
    local record = request_of(tally.owner)
    if record then
      record.running, record.failed, record.parked = tally.running, tally.failed, tally.parked
      local there = tally.running + tally.failed + tally.parked + tally.delayed
      if record.group == 1 then
        record.total = there
      else
        local ended = tally.handled + tally.cancelled
        record.handled, record.cancelled = tally.handled, tally.cancelled
        record.results, record.forgotten = tally.results, 0
        record.total = math.max(record.total, there + ended)
        record.done = record.total - there - ended
      end
      changed[#changed + 1] = tally.owner
    end
  end
  tell('changed', changed)
  settle_requests()
  return finish({'1'})
end
