-- add: nothing -> ready | delayed
--
-- ARGV   time, caller, number, on_conflict, groups of jobs (see read_jobs)
-- reply  one letter per job: '1' created; 'L' kept until the cancelled run of this id is over;
--        else the set that already has its id:
--        r(eady) l(eased) d(elayed) f(ailed) e(nded) p(arked)
--
-- With on_conflict 'raise', one taken id refuses the whole call.

local again = begin()
if again then return again end

local groups = read_jobs(ARGV, 5)
for _, group in ipairs(groups) do
  if group.facts and group.facts.group then refuse('INVALID', 'options') end
end
local flags = choose(groups)
local taken = string.find(flags, '[^1L]')
if taken and ARGV[4] == 'raise' then refuse('EXISTS', tostring(taken - 1)) end

create(groups)
return finish({flags})
