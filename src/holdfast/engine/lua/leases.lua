-- Transitions of leases: taking, extending, and every way in which a run ends.

-- The facts of these jobs, for the reply; {} if no job has any.
local function facts_beside(ids)
  if #ids == 0 or not this.has_facts then return {} end
  local facts = call('HMGET', key.facts, unpack(ids))
  for i = 1, #ids do facts[i] = facts[i] or '' end
  return facts
end

-- Answer a repeated call of lease: the same leases, except any that the caller has lost since.
local function answer_again(token, ids, completed, wait_ms)
  local mine = {}
  for _, id in ipairs(ids) do
    local hold = call('ZSCORE', key.leased, id) and call('HGET', key.holds, id)
    if hold and string.find(hold, token .. ' ', 1, true) == 1 then mine[#mine + 1] = id end
  end
  local payloads = #mine > 0 and call('HMGET', key.jobs, unpack(mine)) or {}
  this.has_facts = true
  return {mine, payloads, facts_beside(mine), completed, wait_ms}
end

-- Milliseconds, at most 1000, until a job may become ready without a call: the next due job, or
-- the next lease that lapses. Both are times that the next call must not miss.
local function worth_asking_in(failed)
  if not failed and has_more() or (this.budget or 1) <= 0 or this.unpublished then return 0 end
  local wait_ms = 1000
  -- The call may not have looked at `delayed` before: a key of another type has no time.
  local due_at = redis.pcall('ZRANGE', failed and key.failed or key.delayed, 0, 0, 'WITHSCORES')[2]
  due_at = tonumber(due_at)
  if due_at then
    if not failed then tend_by(due_at) end
    wait_ms = math.min(wait_ms, due_at - this.now)
  end
  local lapses_at = tonumber(call('ZRANGE', key.leased, 0, 0, 'WITHSCORES')[2])
  if lapses_at then
    tend_by(lapses_at)
    if lapses_at > this.lapsed_by then lapses_at = math.max(lapses_at, this.grace) end
    wait_ms = math.min(wait_ms, lapses_at - this.now)
  end
  return math.max(wait_ms, 0)
end

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
function transition.lease()
  local token, failed = name(args[4], 'token'), args[8] == '1'
  if string.find(token, '%s') then refuse('INVALID', 'token') end

  local again = begin()
  if again then return answer_again(token, unpack(again)) end

  local lease_ms = whole(args[5], 1, MAX_INSTANT, 'lease_ms')
  local wanted = whole(args[6], 1, MAX_JOBS, 'count')
  local groups, at = read_settles(9)
  local results = read_results(at)
  local done, _, numbers, flags = held(groups)
  local found = overdue()
  if #done > 0 then
    check_types('settle')
  else
    check_types(not found and not failed and 'grant' or nil)
  end
  if failed then call('ZCARD', key.failed) end

  complete(done, numbers, flags, results, {})
  local completed = table.concat(flags)
  if found then maintain(found, args[7] == '1', wanted) end
  if this.met then decide_met() end  -- Requests with a free place get a turn.

  local ids, ranks, payloads, wait_ms = {}, {}, {}, 1000
  if not this.paused then ids, ranks, payloads = take_best(wanted, failed) end
  if #ids > 0 then grant_all(ids, ranks, token, after_ms(lease_ms)) end
  settle_requests()
  if not this.paused then
    wait_ms = #ids > 0 and 0 or worth_asking_in(failed)
    if not failed then this.grantable = #ids > 0 and this.asleep and has_more() end
  end
  return finish({ids, completed, wait_ms}, {ids, payloads, facts_beside(ids), completed, wait_ms})
end

-- extend: leased -> leased, with a later lapse
--
-- ARGV   time, caller, number, lease_ms, settles
-- reply  '1' (held), 'c' (held, but the job is cancelled) or '0' (lost) per lease
function transition.extend()
  local again = begin()
  if again then return again end

  local lapses_at = after_ms(whole(args[4], 1, MAX_INSTANT, 'lease_ms'))
  local groups = read_settles(5)
  local ids, _, numbers, flags = held(groups, true)
  if #ids > 0 then
    local leased = {}
    local has_facts = call('HLEN', key.facts) > 0
    local found = has_facts and call('HMGET', key.facts, unpack(ids))
    for i, id in ipairs(ids) do
      leased[2 * i - 1], leased[2 * i] = lapses_at, id
      if has_facts and is_cancelled(read_facts(found[i])) then flags[numbers[i]] = 'c' end
    end
    call('ZADD', key.leased, unpack(leased))
    tend_by(lapses_at)
  end
  return finish({table.concat(flags)})
end

-- recall: leased -> ready, for leases of one holder or held for too long, before they lapse
--
-- ARGV   time, caller, number, holder ('' = any), held for longer than (ms, '' = any), to_the_back,
--        place in `leased` ('' = its end), how many ids to look at
-- reply  how many were taken back, next place (0 = done)
--
-- Counts a lapse, as reclaim does, but does not wait after a silence. Jobs that a reader has
-- claimed are not taken back.
function transition.recall()
  local again = begin()
  if again then return again end

  local holder = args[4]
  local longer = args[5] ~= '' and whole(args[5], 0, MAX_INSTANT, 'held') or -MAX_INSTANT
  local from = args[7] ~= '' and whole(args[7], 0, MAX_INSTANT, 'place')
  local budget = whole(args[8], 1, MAX_JOBS, 'count')
  if #holder > MAX_NAME then refuse('INVALID', 'holder') end
  check_types()
  call('HLEN', key.workers)

  local stop = math.min(from or math.huge, call('ZCARD', key.leased)) - 1
  local start = math.max(0, stop - budget + 1)
  local ids, holds = {}, {}
  if stop >= 0 then
    local walked = call('ZRANGE', key.leased, start, stop)
    local found = call('HMGET', key.holds, unpack(walked))
    for i, id in ipairs(walked) do
      local token, leased_at = string.match(found[i] or '', '^(%S+) (%d+) ')
      local claimed = string.sub(found[i] or '', 1, 6) == 'claim:'  -- A claim goes back whole.
      local mine = holder == '' or token and string.sub(token, 1, #holder + 1) == holder .. '.'
      if mine and not claimed and this.now - (leased_at or 0) > longer then
        ids[#ids + 1], holds[#holds + 1] = id, found[i]
      end
    end
    if #ids > 0 then
      local reason = holder == '' and 'held for too long' or 'its worker failed'
      tell('reclaimed', count_lapses(ids, holds, reason, 0, args[6] == '1', false))
    end
  end
  if holder ~= '' and start == 0 then call('HDEL', key.workers, holder) end
  settle_requests()
  return finish({#ids, start})
end

-- release: leased -> ready | parked at its rank | delayed; or failed, if it counts as a lapse
--
-- ARGV   time, caller, number, after ('' or ms), to_the_back, lapsed ('' or the reason),
--        handlings (see read_handlings), settles
-- reply  '1' or '0' per settle
--
-- Costs the job nothing, unless `lapsed` says why the run did not answer: then it counts a lapse. A
-- job that was cancelled in the meantime ends as cancelled. A job that its failure handler releases
-- is failed as before.
function transition.release()
  local again = begin()
  if again then return again end

  local after = args[4] ~= '' and whole(args[4], 0, MAX_INSTANT, 'after') or 0
  local to_the_back, lapsed = args[5] == '1', args[6]
  if not lapsed or #lapsed > MAX_ERROR then refuse('INVALID', 'lapsed') end
  local handlings = read_handlings(args[7])
  local groups = read_settles(8)
  check_types()
  call('ZCARD', key.delayed)
  call('ZCARD', key.failed)

  local ids, holds, _, flags = held(groups, true)
  local due_at = after > 0 and after_ms(after) or 0

  if #ids > 0 then
    if lapsed ~= '' then
      tell('released', count_lapses(ids, holds, lapsed, due_at, to_the_back, true, handlings))
    else
      release_all(ids, holds, due_at, to_the_back)
    end
  end
  settle_requests()
  return finish({table.concat(flags)})
end

-- complete: leased (or waiting again after a reclaim) -> gone, or its ending remembered
--
-- ARGV   time, caller, number, force, settles, results
-- reply  '1' or '0' per settle
--
-- Only the last token given out may complete a job, and only once. A job that was cancelled in the
-- meantime ends as cancelled, and its answer is '0'. With force the id is enough, whoever holds the
-- job.
function transition.complete()
  local again = begin()
  if again then return again end

  local groups, at = read_settles(5)
  local results = read_results(at)
  local force = args[4] == '1'
  check_types(not force and 'end' or nil)
  if force then check_endings() end

  local ids, numbers, flags, out = to_complete(groups, force)
  complete(ids, numbers, flags, results, out)
  settle_requests()
  return finish({table.concat(flags)})
end

-- complete_and_add: complete one job, and add its follow-ups if this call completed it
--
-- ARGV   time, caller, number, force, settles, results, follow-ups (see read_jobs)
-- reply  '1' or '0' for the settle (see complete), then one letter per follow-up (see add)
function transition.complete_and_add()
  local again = begin()
  if again then return again end

  local groups, at = read_settles(5)
  local results
  results, at = read_results(at)
  local follow_ups = read_jobs(args, at)
  if #groups ~= 1 or groups[1].first ~= groups[1].last then
    refuse('INVALID', 'follow-ups go with one job')
  end
  check_groups(follow_ups)
  check_types()
  check_endings()

  local ids, numbers, flags, out = to_complete(groups, args[4] == '1')
  local added = ''
  if complete(ids, numbers, flags, results, out) then
    added = choose(follow_ups)
    create_each(follow_ups)
  end
  settle_requests()
  return finish({table.concat(flags), added})
end

-- retry: leased -> delayed, or failed when its failures are spent
--
-- ARGV   time, caller, number, then per lease: token, id, due ('' = now), error, raised, handlings
--        (see read_failures)
-- reply  '1' or '0' per lease
--
-- Counts a failure. A job that was cancelled in the meantime ends as cancelled. A job that its
-- failure handler retries goes back to failed, and the handler gets it again, as often as its limit
-- allows.
function transition.retry()
  local again = begin()
  if again then return again end

  local failures = read_failures(4)
  check_types()
  for _, set in ipairs({key.delayed, key.failed}) do call('ZCARD', set) end

  local flags, retried, cancelled = {}, {}, {}
  for i, failure in ipairs(failures) do
    local id = failure.id
    local hold = hold_of(id, failure.token)
    flags[i] = hold and '1' or '0'
    if hold then
      local facts, due_at = facts_of(id), failure.due
      local limit = facts.max_failures or DEFAULT_FAILURES
      call('ZREM', key.leased, id)
      call('HDEL', key.holds, id)
      vacate(facts)
      if is_cancelled(facts) then
        cancelled[#cancelled + 1] = id
        end_job(id, facts, 'cancelled')
      elseif facts.failed_at then
        put_failed_again(id, hold, facts, due_at, failure.handlings)
      else
        facts.failures = (facts.failures or 0) + 1
        facts.error, facts.raised = failure.reason, failure.raised
        if limit >= 0 and facts.failures > limit then
          put_failed(id, hold, facts, this.now)
        else
          retried[#retried + 1] = id
          put_back(id, hold, facts, due_at, true)
        end
      end
    end
  end
  tell('retried', retried)
  tell('cancelled', cancelled)
  settle_requests()
  return finish({table.concat(flags)})
end

-- fail: leased -> failed, without another try
--
-- ARGV   time, caller, number, then per lease: token, id, '', error, raised, ''
-- reply  '1' or '0' per lease
--
-- A job that was cancelled in the meantime ends as cancelled. A job that its failure handler fails
-- waits for a manual decision: no failure handler gets it again.
function transition.fail()
  local again = begin()
  if again then return again end

  local failures = read_failures(4)
  check_types()
  call('ZCARD', key.failed)

  local flags, cancelled = {}, {}
  for i, failure in ipairs(failures) do
    local id = failure.id
    local hold = hold_of(id, failure.token)
    flags[i] = hold and '1' or '0'
    if hold then
      local facts = facts_of(id)
      call('ZREM', key.leased, id)
      call('HDEL', key.holds, id)
      vacate(facts)
      if is_cancelled(facts) then
        cancelled[#cancelled + 1] = id
        end_job(id, facts, 'cancelled')
      elseif facts.failed_at then
        put_failed(id, hold, facts, SPENT + facts.failed_at)
      else
        facts.failures = (facts.failures or 0) + 1
        facts.error, facts.raised = failure.reason, failure.raised
        put_failed(id, hold, facts, this.now)
      end
    end
  end
  tell('cancelled', cancelled)
  settle_requests()
  return finish({table.concat(flags)})
end
