-- retry: leased -> delayed, or failed when its failures are spent
--
-- ARGV   time, caller, number, then per lease: token, id, due ('' = now), error, raised, handlings
--        (see read_failures)
-- reply  '1' or '0' per lease
--
-- Counts a failure. A job that was cancelled in the meantime ends as cancelled. A job that its
-- failure handler retries goes back to failed, and the handler gets it again, as often as its limit
-- allows.

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
