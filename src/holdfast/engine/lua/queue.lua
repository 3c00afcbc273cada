-- Transitions of the queue itself, and of the workers that it lists.

-- register: record that a worker is alive, for the next alive_ms
--
-- ARGV   time, caller, number, holder, alive_ms, about (msgpack, opaque)
-- reply  '1'
--
-- A directory for people, not a recovery path: leases lapse whether or not their worker registered.
function transition.register()
  local again = begin()
  if again then return again end

  local holder, about = name(args[4], 'holder'), args[6]
  local until_ms = after_ms(whole(args[5], 1, MAX_INSTANT, 'alive_ms'))
  if not about or #about > MAX_ERROR then refuse('INVALID', 'about') end
  call('HSET', key.workers, holder, string.format('%d', until_ms) .. ' ' .. about)
  -- Each registration looks at four random entries, and drops workers that are long gone.
  for _, other in ipairs(call('HRANDFIELD', key.workers, 4)) do
    local alive_until = string.match(call('HGET', key.workers, other), '^(%d+) ')
    if this.now - (alive_until or 0) > CALLER_MS then call('HDEL', key.workers, other) end
  end
  return finish({'1'})
end

-- pause: grant no lease until resume; jobs that are leased run on
--
-- ARGV   time, caller, number
-- reply  1
function transition.pause()
  local again = begin()
  if again then return again end

  note('paused', this.now)
  this.told[1] = {kind = 'paused', ids = {}}
  return finish({1})
end

-- resume: grant leases again
--
-- ARGV   time, caller, number
-- reply  1
function transition.resume()
  local again = begin()
  if again then return again end

  this.asleep = call('LLEN', key.wake) == 0
  this.grantable = call('ZCARD', key.ready) + call('ZCARD', key.turns) > 0
  this.paused = false
  call('HDEL', key.meta, 'paused')
  this.told[1] = {kind = 'resumed', ids = {}}
  return finish({1})
end

-- tidy: promote, reclaim, prune and process requests now, without leasing anything
--
-- ARGV   time, caller, number, to_the_back, force, failed for longer than (ms, '' = any time)
-- reply  how many were promoted, reclaimed, pruned, dropped, and how many requests and parts were
--        processed: each at most MAX_JOBS, so ask again while one of them is; then how many entries
--        of `staging` were processed: ask again until it is 0; 1 when rows wait to be published
--
-- With force, lapsed leases are reclaimed even right after a silence. Jobs that have been failed
-- for longer than the given time are dropped.
function transition.tidy()
  local again = begin()
  if again then return again end

  this.staging = tonumber(call('ZRANGE', key.staging, 0, 0, 'WITHSCORES')[2])
  local found = overdue(true, args[5] == '1')
  local longer = args[6] ~= '' and whole(args[6], 0, MAX_INSTANT, 'failed')
  local before = longer and this.now - longer - 1
  check_types()
  for _, set in ipairs({key.failed, key.ended}) do call('ZCARD', set) end
  call('HLEN', key.results)

  -- failed -> gone. A score is never less than the time of the failure. Jobs that no failure
  -- handler may have any more come last: their score is SPENT plus the time of the failure.
  local function drop_failed()
    local dropped = {}
    for _, base in ipairs({0, SPENT}) do
      local ids = call('ZRANGE', key.failed, base, base + before, 'BYSCORE', 'LIMIT', 0, MAX_JOBS)
      for i = 1, math.min(#ids, MAX_JOBS - #dropped) do
        local facts = facts_of(ids[i])
        take_out(ids[i], facts)
        end_job(ids[i], facts, 'cancelled')
        dropped[#dropped + 1] = ids[i]
      end
    end
    tell('cancelled', dropped)
    return #dropped
  end

  local promoted, reclaimed, pruned, staging = maintain(found, args[4] == '1')
  local dropped = before and drop_failed() or 0
  settle_requests()
  local tended = MAX_JOBS - math.max(0, this.budget or MAX_JOBS)
  local waiting = call('ZCOUNT', key.staging, '-inf', '(0') > 0
  return finish({promoted, reclaimed, pruned, dropped, tended, staging, waiting and 1 or 0})
end

-- delete: remove the whole queue, whatever is in it, or only when it is empty and unused
--
-- ARGV   time, caller, number, idle_ms ('' = whatever is in it)
-- reply  1 when nothing remains, 0 when it was not empty, or used in the last idle_ms
--
-- Nothing remains, not even the answer to this call, so a repetition deletes again. A repetition
-- that arrives after a later call of its caller is refused, as always.
function transition.delete()
  -- Whether the queue has no jobs, no records that need work, and is not paused.
  local function is_empty()
    for _, set in ipairs({key.ready, key.delayed, key.leased, key.parked, key.turns, key.failed,
      key.ended, key.terms, key.staging}) do
      if call('ZCARD', set) > 0 then return false end
    end
    for _, hash in ipairs({key.jobs, key.requests, key.staged, key.claims, key.ledger}) do
      if call('HLEN', hash) > 0 then return false end
    end
    return not this.paused
  end

  local ok, refusal = pcall(begin)
  local idle_ms = args[4] ~= '' and whole(args[4], 0, MAX_INSTANT, 'idle')
  -- Without idle_ms, keys of the wrong type and a broken sequence are deleted too.
  if not ok then
    refusal = type(refusal) == 'table' and refusal.err or refusal  -- servers differ in this
    local word = string.match(refusal, '^%u+')
    if idle_ms or word ~= 'WRONGTYPE' and word ~= 'BROKEN' then error({err = refusal}) end
  end
  -- Without finish(), because this look does not count as use.
  if idle_ms and not (is_empty() and this.now - (this.seen or 0) >= idle_ms) then return 0 end
  local keys = {}
  for _, its_name in pairs(key) do keys[#keys + 1] = its_name end
  call('UNLINK', unpack(keys))
  redis.pcall('PUBLISH', key.events, cmsgpack.pack({{'deleted', 0, {}}}))
  return 1
end
