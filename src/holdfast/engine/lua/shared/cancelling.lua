-- cancelling: jobs that shall not run again. Call check_types first, and check the types of ended,
-- failed, delayed and results.

-- ready | delayed | parked | failed -> gone, or its ending remembered; leased -> marked, so that it
-- ends as cancelled however its holder settles it. Its successor is removed too, unless
-- leave_successor. Returns whether this call prevents a run.
local function cancel_job(id, running, leave_successor)
  if call('ZSCORE', key.leased, id) then
    local waited = not leave_successor and call('HDEL', key.next, id) == 1
    if waited then book() end
    local facts = running and facts_of(id)
    if not facts or facts.cancelled then return waited end
    facts.cancelled = true
    set_facts(id, facts)
    tell('cancelling', {id})
    return true
  end
  local facts = facts_of(id)
  if not take_out(id, facts) then return false end
  call('HDEL', key.holds, id)
  end_job(id, facts, 'cancelled')
  tell('cancelled', {id})
  return true
end
