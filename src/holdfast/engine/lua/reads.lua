-- Transitions that only look at jobs, workers and counts. They change nothing.

-- counts: the number of jobs in each state, at one moment
--
-- ARGV   time
-- reply  ready, delayed, leased, parked, failed, ended, paused (1 or 0), number of staged chunks of
--        rows, number of claimed chunks of jobs
function transition.counts()
  look()
  local counted = {}
  for i, set in ipairs({
    key.ready, key.delayed, key.leased, key.parked, key.failed, key.ended,
  }) do
    counted[i] = call('ZCARD', set)
  end
  counted[7] = this.paused and 1 or 0
  counted[8], counted[9] = call('HLEN', key.staged), call('HLEN', key.claims)
  return counted
end

-- totals: lifetime counters of the queue
--
-- ARGV   time
-- reply  added, leased, completed, retried, released, reclaimed, failed, cancelled, revived
--
-- `added` has no counter of its own: each added job takes a number of the sequence, and so does
-- each job that is promoted or gets a new rank.
function transition.totals()
  look()
  local counted = call('HMGET', key.meta, 'sequence', 'leased', 'completed', 'retried', 'released',
    'reclaimed', 'failed', 'cancelled', 'revived', 'promoted', 'requeued')
  for i = 1, #counted do counted[i] = tonumber(counted[i]) or 0 end
  counted[1] = math.max(0, counted[1] - counted[10] - counted[11])
  counted[10], counted[11] = nil, nil
  return counted
end

-- show: everything that is stored about one job
--
-- ARGV   time, id
-- reply  now, state letter ('' = no job has this id; see add), score, jobs before it (of `ready`
--        or of its request, else -1), payload or false, facts or '', hold or '', 1 when a
--        successor waits, result or false, paused (1 or 0), the record of its request or group
--        ('' = none), and for a parked job up to 10 tokens that hold the places there
function transition.show()
  look()
  local id = name(args[2], 'id')
  local packed = call('HGET', key.facts, id)
  local facts, state, score, behind = read_facts(packed), '', '0', -1
  local owner = facts.request or facts.group
  for letter, set in pairs({
    r = key.ready, l = key.leased, d = key.delayed, f = key.failed, e = key.ended,
  }) do
    local found = call('ZSCORE', set, id)
    if found then state, score = letter, found end
  end
  if state == 'r' then
    behind = call('ZRANK', key.ready, id)
  elseif state == '' then
    local member = owner and parked_member(id, facts)
    if member and call('ZSCORE', key.parked, member) then
      state = 'p'
      behind = call('ZLEXCOUNT', key.parked, '[' .. parked_prefix(owner), '(' .. member)
    elseif request_in(id) then
      -- The ending of a part is kept as long as its request.
      owner = request_in(id)
      state, score = 'e', call('ZSCORE', key.terms, owner) or '0'
    end
  end

  -- The tokens of other jobs of its request or group, among the first MAX_JOBS leases.
  local holders = {}
  if state == 'p' then
    local leased = call('ZRANGE', key.leased, 0, MAX_JOBS - 1)
    for _, other in ipairs(leased) do
      local its = facts_of(other)
      if #holders < 10 and (its.request or its.group) == owner then
        holders[#holders + 1] = string.match(call('HGET', key.holds, other) or '', '^%S+') or ''
      end
    end
  end
  return {
    string.format('%d', this.now), state, score, behind,
    call('HGET', key.jobs, id), packed or '', call('HGET', key.holds, id) or '',
    call('HEXISTS', key.next, id), call('HGET', key.results, id), this.paused and 1 or 0,
    owner and call('HGET', key.requests, owner) or '', holders,
  }
end

-- peek: jobs of one state, in its order: first to run, first due, or first to lapse; parked jobs by
-- request
--
-- ARGV   time, state letter (see add), how many to skip, how many to show
-- reply  ids, scores, payloads, facts ('' for none), holds ('' for none); 1 when jobs were left out
--        because their payloads do not fit into one reply, else 0
function transition.peek()
  look()
  local set = ({
    r = key.ready, l = key.leased, d = key.delayed, p = key.parked, f = key.failed, e = key.ended,
  })[args[2]]
  if not set then refuse('INVALID', 'state') end
  local first = whole(args[3], 0, MAX_INSTANT, 'place')
  local wanted = whole(args[4], 1, MAX_JOBS, 'count')

  local ids, scores, payloads, facts, holds, bytes, cut = {}, {}, {}, {}, {}, 0, 0
  local found = call('ZRANGE', set, first, first + wanted - 1, 'WITHSCORES')
  for i = 1, #found / 2 do
    local id = set == key.parked and read_parked(found[2 * i - 1]) or found[2 * i - 1]
    bytes = bytes + call('HSTRLEN', key.jobs, id)
    if i > 1 and bytes > MAX_BYTES then
      cut = 1
      break
    end
    ids[i], scores[i] = id, found[2 * i]
    payloads[i] = call('HGET', key.jobs, id) or ''
    facts[i] = call('HGET', key.facts, id) or ''
    holds[i] = call('HGET', key.holds, id) or ''
  end
  return {ids, scores, payloads, facts, holds, cut}
end

-- workers: the registered workers, until when each is alive, and which of its jobs it still holds
--
-- ARGV   time
-- reply  now, then per worker holder, '<alive until> <about>', '1' or '0' for each of `running` in
--        about: whether the last lease of the job is the worker's ('' if about names no jobs)
--
-- A worker reports every few seconds which jobs it runs. This call marks the jobs that have ended
-- since, or went to another worker.
function transition.workers()
  look()

  local function still_held(holder, entry)
    local sound, about = pcall(cmsgpack.unpack, string.match(entry, '^%d+ (.*)$') or '')
    local running = sound and type(about) == 'table' and about.running
    local ids, flags, presented = {}, {}, holder .. '.'
    for i = 1, type(running) == 'table' and math.min(#running, MAX_JOBS) or 0 do
      local id = type(running[i]) == 'table' and running[i].id
      ids[i] = type(id) == 'string' and id or ''
    end
    if #ids == 0 then return '' end
    for i, hold in ipairs(call('HMGET', key.holds, unpack(ids))) do
      local is_theirs = ids[i] == '' or hold and string.sub(hold, 1, #presented) == presented
      flags[i] = is_theirs and '1' or '0'
    end
    return table.concat(flags)
  end

  local found, entries = {string.format('%d', this.now)}, call('HGETALL', key.workers)
  for i = 1, #entries, 2 do
    found[#found + 1], found[#found + 2] = entries[i], entries[i + 1]
    found[#found + 1] = still_held(entries[i], entries[i + 1])
  end
  return found
end

-- rights: which commands this user may not run on the keys of this queue; changes nothing
--
-- ARGV   time
-- reply  names of commands
--
-- A user who gets an answer may call functions or run scripts. This one runs none of these
-- commands, because that might be denied.
function transition.rights()
  local denied = {}
  for _, command in ipairs({
    {'HDEL', key.jobs, ''}, {'HEXISTS', key.jobs, ''}, {'HGET', key.jobs, ''},
    {'HGETALL', key.workers}, {'HINCRBY', key.meta, '', 1}, {'HLEN', key.jobs},
    {'HMGET', key.jobs, ''}, {'HRANDFIELD', key.calls, 1}, {'HSCAN', key.jobs, '0'},
    {'HSET', key.jobs, '', ''}, {'HSTRLEN', key.jobs, ''}, {'LLEN', key.wake},
    {'LPUSH', key.wake, ''}, {'TIME'}, {'UNLINK', key.wake}, {'ZADD', key.ready, 0, ''},
    {'ZCARD', key.ready}, {'ZCOUNT', key.ready, 0, 0}, {'ZLEXCOUNT', key.parked, '-', '+'},
    {'ZMSCORE', key.ready, ''}, {'ZPOPMIN', key.ready}, {'ZRANGE', key.ready, 0, 0},
    {'ZRANK', key.ready, ''}, {'ZREM', key.ready, ''}, {'ZSCORE', key.ready, ''},
    {'PUBLISH', key.events, ''}, {'BLPOP', key.wake, 0}, {'SUBSCRIBE', key.events},
  }) do
    if not redis.acl_check_cmd(unpack(command)) then denied[#denied + 1] = command[1] end
  end
  return denied
end
