-- update: nothing -> ready | delayed | parked, as add; a job that exists is changed instead
--
-- ARGV   time, caller, number, how (see update_of), groups of jobs (see read_jobs)
-- reply  one letter per job: '1' created; R D P changed, and now ready, delayed or parked; L kept
--        until its lease ends; F failed before, and revived; e ended, and still remembered
--
-- Jobs are taken one after the other, so the same id may come twice. The call is refused if it
-- would change a part of a request.

local again = begin()
if again then return again end

local groups = read_jobs(ARGV, 5)
update_of({}, '', ARGV[4])
check_groups(groups)
check_types()
for _, set in ipairs({key.delayed, key.failed, key.ended}) do call('ZCARD', set) end
for _, hash in ipairs({key.results, key.next}) do call('HLEN', hash) end

if call('HLEN', key.requests) > 0 then
  local place = 0
  for _, group in ipairs(groups) do
    for i = group.first, group.last, 2 do
      if request_in(ARGV[i]) and call('HEXISTS', key.jobs, ARGV[i]) == 1 then
        refuse('PART', tostring(place))
      end
      place = place + 1
    end
  end
end

local letters = update_each(groups, ARGV[4])
settle_requests()
return finish({table.concat(letters)})
