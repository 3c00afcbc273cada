-- show: everything that is stored about one job
--
-- ARGV   time, id
-- reply  now, state letter ('' = no job has this id; see add), score, jobs before it (of `ready`
--        or of its request, else -1), payload or false, facts or '', hold or '', 1 when a
--        successor waits, result or false, paused (1 or 0), the record of its request or group
--        ('' = none), and for a parked job up to 10 tokens that hold the places there

look()
local id = name(ARGV[2], 'id')
local packed = call('HGET', key.facts, id)
local facts, state, score, behind = read_facts(packed), '', '0', -1
local owner = facts.request or facts.group
for letter, set in pairs({
  r = key.ready, l = key.leased, d = key.delayed, f = key.failed, e = key.ended,
}) do
  local found = call('ZSCORE', set, id)
  if found then state, score = letter, found end
end
if state == 'r' then
  behind = call('ZRANK', key.ready, id)
elseif state == '' then
  local member = owner and parked_member(id, facts)
  if member and call('ZSCORE', key.parked, member) then
    state = 'p'
    behind = call('ZLEXCOUNT', key.parked, '[' .. parked_prefix(owner), '(' .. member)
  elseif request_in(id) then
    -- The ending of a part is kept as long as its request.
    owner = request_in(id)
    state, score = 'e', call('ZSCORE', key.terms, owner) or '0'
  end
end

-- The tokens of other jobs of its request or group, among the first MAX_JOBS leases.
local holders = {}
if state == 'p' then
  local leased = call('ZRANGE', key.leased, 0, MAX_JOBS - 1)
  for _, other in ipairs(leased) do
    local its = facts_of(other)
    if #holders < 10 and (its.request or its.group) == owner then
      holders[#holders + 1] = string.match(call('HGET', key.holds, other) or '', '^%S+') or ''
    end
  end
end
return {
  string.format('%d', this.now), state, score, behind,
  call('HGET', key.jobs, id), packed or '', call('HGET', key.holds, id) or '',
  call('HEXISTS', key.next, id), call('HGET', key.results, id), this.paused and 1 or 0,
  owner and call('HGET', key.requests, owner) or '', holders,
}
