-- fail: leased -> failed, without another try
--
-- ARGV   time, caller, number, then per lease: token, id, '', error, raised, ''
-- reply  '1' or '0' per lease
--
-- A job that was cancelled in the meantime ends as cancelled. A job that its failure handler fails
-- waits for a manual decision: no failure handler gets it again.

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
