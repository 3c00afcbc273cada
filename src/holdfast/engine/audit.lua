-- audit: look at some ids and name every invariant that is broken; changes nothing
--
-- ARGV   time, set (1…), place in it ('' = its end), how many ids to look at
-- reply  problems, next set (0 = done), next place (0 = its end), stamp, totals, tallies
--
-- A set is walked from its end to its front, as jobs leave from the front: what moves
-- up meanwhile is seen twice, never missed. What no set holds cannot be walked without
-- reading every payload, so it is found by counting: `totals` are the lengths of the
-- hashes, `tallies` how many of their fields belong to the ids of this chunk. The caller
-- adds the tallies up, and may compare while the stamp has not changed.

local SETS = {'ready', 'delayed', 'leased', 'failed', 'ended'}
local SET_KEYS = {key.ready, key.delayed, key.leased, key.failed, key.ended}
local HASHES = {'jobs', 'holds', 'facts', 'next', 'results'}
local HASH_KEYS = {key.jobs, key.holds, key.facts, key.next, key.results}
-- Whatever changes a queue changes one of these.
local COUNTERS = {
  'sequence', 'leased', 'completed', 'released', 'promoted', 'reclaimed', 'failed', 'pruned',
  'retried', 'updated', 'cancelling', 'cancelled', 'revived', 'result',
}

look()
local problems, tallies = {}, {0, 0, 0, 0, 0}
local index = whole(ARGV[2], 1, #SETS, 'set')
local place = ARGV[3] ~= '' and whole(ARGV[3], 0, MAX_INSTANT, 'place')
local budget = whole(ARGV[4], 1, MAX_JOBS, 'count')
local counted = call('HMGET', key.meta, unpack(COUNTERS))

local function check(id, score, set)
  local function broken(what) problems[#problems + 1] = {id, what} end

  for other = 1, #SETS do
    if SETS[other] ~= set and call('ZSCORE', SET_KEYS[other], id) then
      broken('in ' .. set .. ' and in ' .. SETS[other])
    end
  end
  local has = {}
  for i, hash in ipairs(HASHES) do
    has[hash] = call('HEXISTS', HASH_KEYS[i], id) == 1
    if has[hash] then tallies[i] = tallies[i] + 1 end
  end
  local facts = {}
  if has.facts then
    local sound
    facts, sound = read_facts(call('HGET', key.facts, id))
    if not sound then broken('facts cannot be read') end
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
    if has.results and not facts.result_for_ms then broken('a result that nobody wants') end
    if facts.outcome then broken('an outcome, but not ended') end
  end
  if facts.cancelled and set ~= 'leased' then broken('cancelled, but not leased') end
  if set == 'failed' and not facts.failed_at then broken('failed at no time') end
  if facts.failed_at and set ~= 'failed' and set ~= 'leased' then
    broken('a time of failure, but not failed')
  end
  if set == 'leased' and not has.holds then broken('leased without a hold') end
  if has.holds then
    if set ~= 'leased' and set ~= 'ready' then broken('a hold, but not leased') end
    if not string.find(call('HGET', key.holds, id), '^%S+ %d+ %d+') then
      broken('hold cannot be read')
    end
  end
  if has.next and set ~= 'leased' then broken('a successor, but not leased') end
  if facts.priority and set ~= 'delayed' and not facts.failed_at then
    broken('priority in the facts, but not delayed')
  end
  if facts.number and set ~= 'delayed' then broken('number in the facts, but not delayed') end
  local given = score % RANKS <= tonumber(counted[1] or 0) and score < 100 * RANKS
  if set == 'ready' and not given then
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

if call('LLEN', key.wake) > 1 then problems[#problems + 1] = {'', 'more than one wake token'} end
local totals, stamp = {}, {}
for i, hash in ipairs(HASH_KEYS) do totals[i] = call('HLEN', hash) end
for i = 1, #COUNTERS do stamp[i] = counted[i] or '' end
return {
  problems, index <= #SETS and index or 0, place or 0, table.concat(stamp, ' '), totals, tallies,
}
