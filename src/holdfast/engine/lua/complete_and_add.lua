-- complete_and_add: complete one job, and add its follow-ups if this call completed it
--
-- ARGV   time, caller, number, force, settles, results, follow-ups (see read_jobs)
-- reply  '1' or '0' for the settle (see complete), then one letter per follow-up (see add)

local again = begin()
if again then return again end

local groups, at = read_settles(5)
local results
results, at = read_results(at)
local follow_ups = read_jobs(ARGV, at)
if #groups ~= 1 or groups[1].first ~= groups[1].last then
  refuse('INVALID', 'follow-ups go with one job')
end
check_groups(follow_ups)
check_types()
check_endings()

local ids, numbers, flags, out = to_complete(groups, ARGV[4] == '1')
local added = ''
if complete(ids, numbers, flags, results, out) then
  added = choose(follow_ups)
  create_each(follow_ups)
end
settle_requests()
return finish({table.concat(flags), added})
