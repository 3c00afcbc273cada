-- delete: remove the whole queue, whatever is in it, or only when it is empty and unused
--
-- ARGV   time, caller, number, idle_ms ('' = whatever is in it)
-- reply  1 when nothing remains, 0 when it was not empty, or used in the last idle_ms
--
-- Nothing remains, not even the answer to this call, so a repetition deletes again. A repetition
-- that arrives after a later call of its caller is refused, as always.

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
local idle_ms = ARGV[4] ~= '' and whole(ARGV[4], 0, MAX_INSTANT, 'idle')
-- Without idle_ms, keys of the wrong type and a broken sequence are deleted too.
if not ok then
  refusal = type(refusal) == 'table' and refusal.err or refusal  -- servers differ in this
  local word = string.match(refusal, '^%u+')
  if idle_ms or word ~= 'WRONGTYPE' and word ~= 'BROKEN' then error({err = refusal}) end
end
-- Without finish(), because this look does not count as use.
if idle_ms and not (is_empty() and this.now - (this.seen or 0) >= idle_ms) then return 0 end
call('UNLINK', unpack(KEYS))
redis.pcall('PUBLISH', key.events, cmsgpack.pack({{'deleted', 0, {}}}))
return 1
