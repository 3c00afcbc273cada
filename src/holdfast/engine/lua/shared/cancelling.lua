-- cancelling: somebody's no. After check_types and the types of ended, failed, delayed, results.

-- ready | delayed | parked | failed -> gone, or its ending remembered; leased -> marked, so that it
-- ends as cancelled whatever its holder says. What waits to succeed it is gone too, unless it
-- is to be left. Returns whether a run is prevented by this call.
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
