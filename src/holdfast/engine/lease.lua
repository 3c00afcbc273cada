-- lease: ready (or failed) -> leased, after promote, reclaim and prune; first completes what
-- is done
--
-- ARGV   time, caller, number, token, lease_ms, count, to_the_back, failed, settles, results
-- reply  ids, payloads, facts ('' for none; empty when no job has any),
--        '1' or '0' per settle, ms until it is worth asking again
--
-- Asking for work is what keeps the queue healthy: what is due is promoted, what lapsed
-- is reclaimed and old endings are forgotten before we look. No other process has to be
-- alive for a job to move. With `failed` it takes failed jobs whose failure handler may run.

local token, failed = name(ARGV[4], 'token'), ARGV[8] == '1'
if string.find(token, '%s') then refuse('INVALID', 'token') end

local function facts_beside(ids)
  if #ids == 0 or not this.has_facts then return {} end
  local facts = call('HMGET', key.facts, unpack(ids))
  for i = 1, #ids do facts[i] = facts[i] or '' end
  return facts
end

-- Asked again: the same leases, as far as they still are the caller's.
local function answer_again(ids, completed, wait_ms)
  local mine = {}
  for _, id in ipairs(ids) do
    local hold = call('ZSCORE', key.leased, id) and call('HGET', key.holds, id)
    if hold and string.find(hold, token .. ' ', 1, true) == 1 then mine[#mine + 1] = id end
  end
  local payloads = #mine > 0 and call('HMGET', key.jobs, unpack(mine)) or {}
  this.has_facts = true
  return {mine, payloads, facts_beside(mine), completed, wait_ms}
end

-- Leave those that fit into one reply; the others go back to where they were.
local function fit(ids, ranks)
  local bytes, left = 0, {}
  for i = 1, #ids do
    bytes = bytes + call('HSTRLEN', key.jobs, ids[i])
    if i > 1 and bytes > MAX_BYTES then
      left[#left + 1] = failed and this.now or ranks[i]
      left[#left + 1] = ids[i]
      ids[i] = nil
    end
  end
  if #left > 0 then call('ZADD', failed and key.failed or key.ready, unpack(left)) end
end

-- An id without a payload is not a job: it is dropped where we meet it, and does not hide
-- the jobs behind it. Returns how many.
local function drop_ghosts(ids, ranks, payloads)
  local ghosts = 0
  for i = #ids, 1, -1 do
    if not payloads[i] then
      call('HDEL', key.holds, ids[i])
      call('HDEL', key.facts, ids[i])
      table.remove(ids, i)
      table.remove(ranks, i)
      table.remove(payloads, i)
      ghosts = ghosts + 1
    end
  end
  return ghosts
end

-- Failed jobs, the longest due first, with ranks that tell their priorities.
local function pop_failed(wanted)
  local ids = call('ZRANGE', key.failed, '-inf', this.now, 'BYSCORE', 'LIMIT', 0, wanted)
  local ranks = {}
  for i, id in ipairs(ids) do
    ranks[i] = string.format('%d', rank_of(facts_of(id).priority or 50, 0))
  end
  if #ids > 0 then call('ZREM', key.failed, unpack(ids)) end
  return ids, ranks
end

local function pop_ready(wanted)
  local found = call('ZPOPMIN', key.ready, wanted)
  local ids, ranks = {}, {}
  for i = 1, #found / 2 do ids[i], ranks[i] = found[2 * i - 1], found[2 * i] end
  return ids, ranks
end

-- Take the best: ids, ranks, payloads.
local function take(wanted)
  local ghosts, pop = 0, failed and pop_failed or pop_ready
  while true do
    local ids, ranks = pop(wanted)
    if #ids == 0 then return ids, ranks, {} end
    if #ids * this.largest > MAX_BYTES then fit(ids, ranks) end
    local payloads, sound = call('HMGET', key.jobs, unpack(ids)), true
    for i = 1, #ids do sound = sound and payloads[i] end
    if not sound then ghosts = ghosts + drop_ghosts(ids, ranks, payloads) end
    if #ids > 0 or ghosts >= MAX_JOBS then return ids, ranks, payloads end
  end
end

local function grant(ids, ranks, lease_ms)
  local n, lapses_at, hold = #ids, after_ms(lease_ms), token .. ' ' .. this.at .. ' '
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

-- When something may come up by itself: the next job due, the next lease that lapses.
local function worth_asking_in()
  if not failed and call('ZCARD', key.ready) > 0 then return 0 end
  local wait_ms = 1000
  local due_at = call('ZRANGE', failed and key.failed or key.delayed, 0, 0, 'WITHSCORES')[2]
  local lapses_at = call('ZRANGE', key.leased, 0, 0, 'WITHSCORES')[2]
  if due_at then wait_ms = math.min(wait_ms, due_at - this.now) end
  if lapses_at then wait_ms = math.min(wait_ms, math.max(lapses_at, this.grace) - this.now) end
  return math.max(wait_ms, 0)
end

local again = begin()
if again then return answer_again(unpack(again)) end

local lease_ms = whole(ARGV[5], 1, MAX_INSTANT, 'lease_ms')
local wanted = whole(ARGV[6], 1, MAX_JOBS, 'count')
local groups, at = read_settles(9)
local results = read_results(at)
local done, _, numbers, flags = held(groups)
local found = overdue()
check_types()
if failed then call('ZCARD', key.failed) end

complete(done, numbers, flags, results)
local completed = table.concat(flags)
if found then maintain(found, ARGV[7] == '1') end

local ids, payloads, wait_ms = {}, {}, 1000
if not this.paused then
  local ranks
  ids, ranks, payloads = take(wanted)
  if #ids > 0 then
    grant(ids, ranks, lease_ms)
    wait_ms = 0
  else
    wait_ms = worth_asking_in()
  end
  if not failed then this.grantable = #ids > 0 and call('ZCARD', key.ready) > 0 end
end
return finish({ids, completed, wait_ms}, {ids, payloads, facts_beside(ids), completed, wait_ms})
