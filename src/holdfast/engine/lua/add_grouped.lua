-- add_grouped: nothing -> ready | delayed | parked: add, for calls in which a job has a group
--
-- ARGV   time, caller, number, on_conflict, groups of jobs (see read_jobs)
-- reply  one letter per job (see add)

local again = begin()
if again then return again end

local groups = read_jobs(ARGV, 5)
check_groups(groups)
check_types()
local flags = choose(groups)
local taken = string.find(flags, '[^1L]')
if taken and ARGV[4] == 'raise' then refuse('EXISTS', tostring(taken - 1)) end

create_each(groups)
settle_requests()
return finish({flags})
