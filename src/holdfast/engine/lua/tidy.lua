-- tidy: promote, reclaim, prune and tend requests now, without leasing anything
--
-- ARGV   time, caller, number, to_the_back, force, failed for longer than (ms, '' = any time)
-- reply  promoted, reclaimed, pruned, dropped, tended: each at most MAX_JOBS, so ask until none is;
--        of what is staged or committed how much was seen to, so ask until it is 0; 1 when
--        something is to be published
--
-- With force what lapsed is reclaimed even after a silence of everybody. Jobs that are
-- failed for longer than somebody's rule allows are dropped.

local again = begin()
if again then return again end

this.staging = tonumber(call('ZRANGE', key.staging, 0, 0, 'WITHSCORES')[2])
local found = overdue(ARGV[5] == '1')
local longer = ARGV[6] ~= '' and whole(ARGV[6], 0, MAX_INSTANT, 'failed')
local before = longer and this.now - longer - 1
check_types()
for _, set in ipairs({key.failed, key.ended}) do call('ZCARD', set) end
call('HLEN', key.results)

-- failed -> gone. A score is never less than the time of the failure; what no handler may
-- have any more stands behind the others, by that time too.
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

local promoted, reclaimed, pruned, staging = maintain(found, ARGV[4] == '1')
local dropped = before and drop_failed() or 0
settle_requests()
local tended = MAX_JOBS - math.max(0, this.budget or MAX_JOBS)
local waiting = call('ZCOUNT', key.staging, '-inf', '(0') > 0
return finish({promoted, reclaimed, pruned, dropped, tended, staging, waiting and 1 or 0})
