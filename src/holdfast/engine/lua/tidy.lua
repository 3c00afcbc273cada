-- tidy: promote, reclaim, prune and process requests now, without leasing anything
--
-- ARGV   time, caller, number, to_the_back, force, failed for longer than (ms, '' = any time)
-- reply  how many were promoted, reclaimed, pruned, dropped, and how many requests and parts were
--        processed: each at most MAX_JOBS, so ask again while one of them is; then how many entries
--        of `staging` were processed: ask again until it is 0; 1 when rows wait to be published
--
-- With force, lapsed leases are reclaimed even right after a silence. Jobs that have been failed
-- for longer than the given time are dropped.

local again = begin()
if again then return again end

this.staging = tonumber(call('ZRANGE', key.staging, 0, 0, 'WITHSCORES')[2])
local found = overdue(ARGV[5] == '1')
local longer = ARGV[6] ~= '' and whole(ARGV[6], 0, MAX_INSTANT, 'failed')
local before = longer and this.now - longer - 1
check_types()
for _, set in ipairs({key.failed, key.ended}) do call('ZCARD', set) end
call('HLEN', key.results)

-- failed -> gone. A score is never less than the time of the failure. Jobs that no failure handler
-- may have any more come last: their score is SPENT plus the time of the failure.
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
