-- lease: ready | parked (or failed) -> leased, after promote, reclaim and prune; first completes
-- the given settles
--
-- ARGV   time, caller, number, token, lease_ms, count, to_the_back, failed, settles, results
-- reply  ids, payloads, facts ('' for none; empty when no job has any),
--        '1' or '0' per settle, ms until it is worth asking again
--
-- Asking for work keeps the queue healthy: before jobs are granted, due jobs are promoted, lapsed
-- leases are reclaimed and old endings are forgotten. No other process has to be alive for a job to
-- move. If fewer jobs are ready than wanted, the call also publishes committed rows. With `failed`
-- it takes failed jobs whose failure handler may run.

local token, failed = name(ARGV[4], 'token'), ARGV[8] == '1'
if string.find(token, '%s') then refuse('INVALID', 'token') end

local function facts_beside(ids)
  if #ids == 0 or not this.has_facts then return {} end
  local facts = call('HMGET', key.facts, unpack(ids))
  for i = 1, #ids do facts[i] = facts[i] or '' end
  return facts
end

-- Answer a repeated call: the same leases, except any that the caller has lost since.
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

-- Milliseconds, at most 1000, until a job may become ready without a call: the next due job, or the
-- next lease that lapses.
local function worth_asking_in()
  if not failed and has_more() or (this.budget or 1) <= 0 or this.unpublished then return 0 end
  local wait_ms = 1000
  local due_at = call('ZRANGE', failed and key.failed or key.delayed, 0, 0, 'WITHSCORES')[2]
  local lapses_at = call('ZRANGE', key.leased, 0, 0, 'WITHSCORES')[2]
  if due_at then wait_ms = math.min(wait_ms, due_at - this.now) end
  lapses_at = tonumber(lapses_at)
  if lapses_at then
    if lapses_at > this.lapsed_by then lapses_at = math.max(lapses_at, this.grace) end
    wait_ms = math.min(wait_ms, lapses_at - this.now)
  end
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

complete(done, numbers, flags, results, {})
local completed = table.concat(flags)
if found then maintain(found, ARGV[7] == '1', wanted) end
if this.met then decide_met() end  -- Requests with a free place get a turn.

local ids, ranks, payloads, wait_ms = {}, {}, {}, 1000
if not this.paused then ids, ranks, payloads = take_best(wanted, failed) end
if #ids > 0 then grant_all(ids, ranks, token, after_ms(lease_ms)) end
settle_requests()
if not this.paused then
  wait_ms = #ids > 0 and 0 or worth_asking_in()
  if not failed then this.grantable = #ids > 0 and has_more() end
end
return finish({ids, completed, wait_ms}, {ids, payloads, facts_beside(ids), completed, wait_ms})
