-- release: leased -> ready at its rank | delayed; when it counts as a lapse, maybe -> failed
--
-- ARGV   time, caller, number, after ('' or ms), to_the_back, lapsed ('' or the reason),
--        settles
-- reply  '1' or '0' per settle
--
-- Costs the job nothing, unless `lapsed` says that a run did not answer.

local again = begin()
if again then return again end

local after = ARGV[4] ~= '' and whole(ARGV[4], 0, MAX_INSTANT, 'after') or 0
local to_the_back = ARGV[5] == '1'
local groups = read_settles(7)
check_types()
call('ZCARD', key.delayed)
call('ZCARD', key.failed)

-- leased -> delayed. The priority waits in the facts, as the score is the time.
local function put_off(ids, holds, due_at)
  local delayed = {}
  for i, id in ipairs(ids) do
    local priority = priority_in(holds[i])
    if priority ~= 50 then
      local facts = facts_of(id)
      facts.priority = priority
      set_facts(id, facts)
    end
    delayed[2 * i - 1], delayed[2 * i] = due_at, id
  end
  call('ZREM', key.leased, unpack(ids))
  call('ZADD', key.delayed, unpack(delayed))
  this.grantable = this.grantable or due_at - this.now < 1000
end

local ids, holds, flags = held(groups, true)
if #ids > 0 then
  call('HDEL', key.holds, unpack(ids))
  if ARGV[6] ~= '' then ids, holds = count_lapse(ids, holds, ARGV[6]) end
  if after == 0 then
    give_back(ids, holds, to_the_back)
  elseif #ids > 0 then
    put_off(ids, holds, after_ms(after))
  end
  tell('released', ids)
end
return finish({flags})
