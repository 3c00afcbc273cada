-- repair: look at some ids and mend every invariant that is broken
--
-- ARGV   time, caller, number, stage (1…), place ('' = its begin), how many ids to look at
-- reply  what was done (id, what, id, what, …), next stage (0 = done), next place
--
-- First the sets are walked, each from its end, then the hashes. Nothing that has a payload
-- is dropped: a job that no set has is ready again. It may run at any time, beside workers
-- and other repairs.

-- Whoever broke the sequence, it goes on above every number that was ever given.
local broken = redis.pcall('HGET', key.meta, 'sequence')
if type(broken) == 'string' and not string.find(broken, '^%d+$') then
  call('HSET', key.meta, 'sequence', ARGV[1] ~= '' and ARGV[1] or call('TIME')[1] * 1000)
end

local again = begin()
if again then return again end
if not redis.acl_check_cmd('HSCAN', key.jobs, '0') then refuse('NOPERM', 'HSCAN') end

local SETS = {'ready', 'delayed', 'leased', 'failed', 'ended'}
local SET_KEYS = {key.ready, key.delayed, key.leased, key.failed, key.ended}
-- Of two sets the one that stands first here keeps the id.
local KEEPS = {leased = 1, ready = 2, delayed = 3, failed = 4, ended = 5}
local HASH_KEYS = {key.jobs, key.holds, key.facts, key.next, key.results}

local stage = whole(ARGV[4], 1, #SETS + #HASH_KEYS, 'stage')
local from = ARGV[5]
local budget = whole(ARGV[6], 1, MAX_JOBS, 'count')
if from ~= '' then whole(from, 0, MAX_INSTANT, 'place') end
check_types()
for _, set in ipairs({key.delayed, key.failed, key.ended}) do call('ZCARD', set) end
call('HLEN', key.results)
local given = tonumber(call('HGET', key.meta, 'sequence') or 0)

local done = {}
local function did(id, what) done[#done + 1], done[#done + 2] = id, what end

local function drop(id)
  for _, hash in ipairs(HASH_KEYS) do call('HDEL', hash, id) end
end

-- nothing -> ready, at the rank that its hold tells; or failed, or ended, where that is known.
-- Returns the word for it.
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
    -- As after a reclaim: its last holder may still complete it.
    put_waiting(id, facts, MAX_PRIORITY - math.floor(rank / RANKS), rank, 0)
  else
    call('HDEL', key.holds, id)
    put_waiting(id, facts, facts.priority or 50, nil, 0)
  end
  return 'ready'
end

local function is_elsewhere(id, set)
  for i, other in ipairs(SETS) do
    if KEEPS[other] < KEEPS[set] and call('ZSCORE', SET_KEYS[i], id) then return true end
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
  if set ~= 'delayed' then clear('number') end
  if set ~= 'delayed' and not facts.failed_at then clear('priority') end
  if not sound then
    set_facts(id, facts)
    did(id, 'facts mended')
  end
  return facts
end

local function mend(id, score, set, set_key)
  if is_elsewhere(id, set) then
    call('ZREM', set_key, id)
    return did(id, 'taken out of ' .. set .. ', as another set has it')
  end
  local has_payload = call('HEXISTS', key.jobs, id) == 1
  local facts = mend_facts(id, set)
  local hold = call('HGET', key.holds, id)
  local sound = hold and string.find(hold, '^%S+ %d+ %d+')
  if hold and (not sound or set ~= 'leased' and set ~= 'ready') then
    call('HDEL', key.holds, id)
    did(id, 'hold dropped')
  end
  if set == 'ended' then
    if facts.outcome and has_payload == (facts.keep or false) then return end
    call('ZREM', set_key, id)
    if has_payload and not facts.outcome then
      return did(id, 'ended without an outcome: now ' .. file(id))
    end
    drop(id)
    return did(id, 'ending forgotten, as it was not whole')
  end
  if not has_payload then
    call('ZREM', set_key, id)
    drop(id)
    return did(id, 'dropped, as it has no payload')
  end
  if call('HEXISTS', key.results, id) == 1 and not facts.result_for_ms then
    call('HDEL', key.results, id)
    did(id, 'result dropped, as nobody wants it')
  end
  if facts.cancelled and set ~= 'leased' then
    cancel_job(id, true)
    return did(id, 'ended, as it was cancelled')
  end
  if set == 'leased' and not sound then
    call('ZREM', set_key, id)
    return did(id, 'leased without a hold: now ' .. file(id))
  end
  score = tonumber(score)
  local whole_score = score >= 0 and score <= MAX_INSTANT and score % 1 == 0
  local was_given = whole_score and score % RANKS <= given and score < 100 * RANKS
  if set == 'ready' and not was_given then
    call('ZADD', set_key, rank_behind(50), id)
    did(id, 'given a new rank')
  elseif not whole_score then
    call('ZADD', set_key, this.now, id)
    did(id, 'given a new time')
  end
  if set ~= 'leased' and call('HEXISTS', key.next, id) == 1 then
    local successor = take_successor(id)
    if successor then change(id, successor) end
    did(id, successor and 'successor applied' or 'successor dropped, as it cannot be read')
  end
end

-- What is in a hash and in no set; or an update of what has ended.
local function adopt(id, hash)
  for i, set in ipairs(SET_KEYS) do
    local ended = hash == key.next and SETS[i] == 'ended'
    if not ended and call('ZSCORE', set, id) then return end
  end
  if hash == key.jobs then return did(id, 'in no set: now ' .. file(id)) end
  if hash ~= key.next and call('HEXISTS', key.jobs, id) == 1 then return end
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
  -- Values are read too, so no more of them than fit into a call.
  local fits = math.floor(MAX_BYTES / math.max(this.largest, 1024 * 1024))
  local hash = HASH_KEYS[stage - #SETS]
  local found = call('HSCAN', hash, from ~= '' and from or '0', 'COUNT', math.min(budget, fits))
  for i = 1, #found[2], 2 do adopt(found[2][i], hash) end
  from = found[1] ~= '0' and found[1] or ''
end
if call('LLEN', key.wake) > 1 then
  call('UNLINK', key.wake)
  this.asleep, this.grantable = true, true
  did('', 'wake tokens reduced to one')
end
if from == '' then stage = stage + 1 end
return finish({done, stage <= #SETS + #HASH_KEYS and stage or 0, from})
