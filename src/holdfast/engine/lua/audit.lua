-- audit: check some ids against every invariant; changes nothing
--
-- ARGV   time, set (1…), place in it ('' = its end), how many ids to look at
-- reply  problems, next set (0 = done), next place (0 = its end), stamp, totals, tallies,
--        records (request, record, …), fellows (request, set, how many, …)
--
-- A set is walked from its end to its front. Jobs leave at the front, so an id that moves up during
-- the walk is seen twice, never missed. To walk the hashes would mean to read every payload, so
-- entries that belong to no set are found by counting: `totals` are the lengths of the hashes and
-- of `turns`, and `tallies` say how many of these entries belong to the ids of this chunk. The
-- caller adds up the tallies, and may compare them with the totals if the stamp has not changed.
-- The jobs of each request are counted, and compared with its record, in the same way.
function transition.audit()
  local SETS = {'ready', 'delayed', 'leased', 'parked', 'failed', 'ended', 'terms', 'staging'}
  local SET_KEYS = {
    key.ready, key.delayed, key.leased, key.parked, key.failed, key.ended, key.terms, key.staging,
  }
  local NOT_BY_ID = {parked = true, terms = true, staging = true}
  local HASHES = {'jobs', 'holds', 'facts', 'next', 'results', 'requests'}
  local HASH_KEYS = {key.jobs, key.holds, key.facts, key.next, key.results, key.requests}

  look()
  local problems, tallies, records, fellows = {}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, {}, {}
  local index = whole(args[2], 1, #SETS, 'set')
  local place = args[3] ~= '' and whole(args[3], 0, MAX_INSTANT, 'place')
  local budget = whole(args[4], 1, MAX_JOBS, 'count')
  local given = tonumber(call('HGET', key.meta, 'sequence') or 0)

  local function check_request(request)
    local function broken(what) problems[#problems + 1] = {request, what} end

    tallies[6] = tallies[6] + call('HEXISTS', key.requests, request)
      + call('HEXISTS', key.requests, request .. '/end')
    local record = request_of(request)
    if not record then return broken('a request without a record') end
    records[#records + 1] = request
    records[#records + 1] = call('HGET', key.requests, request)
    -- The endings of its parts are kept as long as the request.
    tallies[3] = tallies[3] + record.cancelled + record.handled - record.forgotten
    tallies[5] = tallies[5] + record.results
    if record.outcome > 0 and record.parked > 0 then
      broken('ended, but parts of it wait')
    end
    local turn = tonumber(call('ZSCORE', key.turns, request) or 0)
    tallies[7] = tallies[7] + (turn > 0 and 1 or 0)
    if turn ~= record.turn then broken('its turn is not where its record says') end
    if turn > 0 and not has_turn(record) then broken('a turn, but no free place or no part') end
    if turn == 0 and has_turn(record) then broken('a free place and a part, but no turn') end
    local over = record.done + record.failed + record.handled + record.cancelled
    if record.group == 0 and over + record.running + record.parked > record.total then
      broken('more parts than there are')
    end
    if record.sealed == 1 and record.outcome == 0 and over >= record.total then
      broken('over, but not ended')
    end
  end

  local function check_entry(entry, score)
    local function broken(what) problems[#problems + 1] = {entry, what} end

    local kept, kind = entry_of(entry), string.match(entry, '^%a+')
    tallies[10] = tallies[10] + call('HEXISTS', key.ledger, entry)
    if not kept then return broken('in staging, but not in the ledger') end
    if kind == 'claim' then
      tallies[9] = tallies[9] + #sizes_in(kept) - number_in(kept, 'first')
    elseif kind == 'attempt' then
      tallies[8] = tallies[8] + number_in(kept, 'chunks') - number_in(kept, 'first')
      local list = type(kept.of) == 'string' and kept.of
      if list and call('HEXISTS', key.ledger, list) == 0 then broken('adopted by nobody') end
      if list and tonumber(score) < MAX_INSTANT then broken('adopted, but to be forgotten') end
    elseif kind == 'commit' and (tonumber(score) < 0) ~= not kept.published_at then
      broken('committed, but not to be published')
    end
  end

  local function check(id, score, set)
    local function broken(what) problems[#problems + 1] = {id, what} end

    local member, owner = id, nil
    if set == 'terms' then return check_request(id) end
    if set == 'staging' then return check_entry(id, score) end
    if set == 'parked' then id, score, owner = read_parked(member) end
    for other = 1, #SETS do
      local by_id = not NOT_BY_ID[SETS[other]]
      if SETS[other] ~= set and by_id and call('ZSCORE', SET_KEYS[other], id) then
        broken('in ' .. set .. ' and in ' .. SETS[other])
      end
    end
    local has = {}
    for i, hash in ipairs(HASHES) do
      has[hash] = call('HEXISTS', HASH_KEYS[i], id) == 1
    end
    local facts = {}
    if has.facts then
      local sound
      facts, sound = read_facts(call('HGET', key.facts, id))
      if not sound then broken('facts cannot be read') end
    end
    for i, hash in ipairs(HASHES) do
      -- The results of parts are counted in the record of their request.
      local of_request = hash == 'requests' or hash == 'results' and facts.request
      if has[hash] and not of_request then tallies[i] = tallies[i] + 1 end
    end
    local fellow = facts.request or facts.group
    if fellow then
      local of_set = (fellows[set] or {})
      fellows[set] = of_set
      of_set[fellow] = (of_set[fellow] or 0) + 1
      if set == 'ready' then broken('a part, but not parked') end
      if set ~= 'parked' and call('ZSCORE', key.parked, parked_member(id, facts)) then
        broken('in ' .. set .. ' and in parked')
      end
    end
    if set == 'parked' and (owner ~= fellow or parked_member(id, facts) ~= member) then
      broken('parked where its facts do not say')
    end

    score = tonumber(score)
    if not (score >= 0 and score <= MAX_INSTANT and score % 1 == 0) then
      broken('score is not a whole number')
    end
    if set == 'ended' then
      if not facts.outcome then broken('ended without an outcome') end
      if has.jobs ~= (facts.keep or false) then broken('payload of an ending') end
    else
      if not has.jobs then broken('no payload') end
      if has.results and not (facts.result_for_ms or facts.request) then
        broken('a result that nobody wants')
      end
      if facts.outcome then broken('an outcome, but not ended') end
    end
    if facts.cancelled and set ~= 'leased' then broken('cancelled, but not leased') end
    if set == 'failed' and not facts.failed_at then broken('failed at no time') end
    if facts.failed_at and set ~= 'failed' and set ~= 'leased' then
      broken('a time of failure, but not failed')
    end
    if set == 'leased' and not has.holds then broken('leased without a hold') end
    if set == 'leased' and has.holds and is_claimed_by_nobody(call('HGET', key.holds, id)) then
      broken('claimed by nobody')
    end
    if has.holds then
      if set ~= 'leased' and set ~= 'ready' and set ~= 'parked' then
        broken('a hold, but not leased')
      end
      if not string.find(call('HGET', key.holds, id), '^%S+ %d+ %d+') then
        broken('hold cannot be read')
      end
    end
    if has.next and set ~= 'leased' then broken('a successor, but not leased') end
    if facts.priority and set ~= 'delayed' and not facts.failed_at and not fellow then
      broken('priority in the facts, but not delayed')
    end
    if facts.number and set ~= 'delayed' and not fellow then
      broken('number in the facts, but not delayed')
    end
    local was_given = score % RANKS <= given and score < 100 * RANKS
    if (set == 'ready' or set == 'parked') and not was_given then
      broken('rank that was never given')
    end
  end

  while index <= #SETS and budget > 0 do
    local set = SETS[index]
    local stop = math.min(place or math.huge, call('ZCARD', SET_KEYS[index])) - 1
    local start = math.max(0, stop - budget + 1)
    if stop >= 0 then
      local found = call('ZRANGE', SET_KEYS[index], start, stop, 'WITHSCORES')
      for i = 1, #found, 2 do check(found[i], found[i + 1], set) end
      budget = budget - #found / 2
    end
    if start == 0 then
      index, place = index + 1, nil
    else
      place = start
    end
  end

  local first = tonumber(call('ZRANGE', key.staging, 0, 0, 'WITHSCORES')[2])
  if first and not (this.staging and this.staging <= first) then
    problems[#problems + 1] = {'', 'what is staged is seen to too late'}
  end
  if call('LLEN', key.wake) > 1 then problems[#problems + 1] = {'', 'more than one wake token'} end
  local totals = {}
  for i, hash in ipairs(HASH_KEYS) do totals[i] = call('HLEN', hash) end
  totals[7] = call('ZCARD', key.turns)
  for i, hash in ipairs({key.staged, key.claims, key.ledger}) do
    totals[7 + i] = call('HLEN', hash)
  end
  local counts_of = {}
  for set, of_set in pairs(fellows) do
    for owner, n in pairs(of_set) do
      for _, value in ipairs({owner, set, n}) do counts_of[#counts_of + 1] = value end
    end
  end
  return {
    problems, index <= #SETS and index or 0, place or 0, stamp(), totals, tallies,
    records, counts_of,
  }
end
