-- complete: leased (or waiting again after a reclaim) -> gone, or its ending remembered
--
-- ARGV   time, caller, number, force, settles, results
-- reply  '1' or '0' per settle
--
-- Only the last token given out may complete a job, and only once. A job that was cancelled in the
-- meantime ends as cancelled, and its answer is '0'. With force the id is enough, whoever holds the
-- job.

local again = begin()
if again then return again end

local groups, at = read_settles(5)
local results = read_results(at)
local force = ARGV[4] == '1'
check_types()
if force then check_endings() end

local ids, numbers, flags, out = to_complete(groups, force)
complete(ids, numbers, flags, results, out)
settle_requests()
return finish({table.concat(flags)})
