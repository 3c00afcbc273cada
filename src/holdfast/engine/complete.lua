-- complete: leased (or waiting again after a reclaim) -> gone, or its ending remembered
--
-- ARGV   time, caller, number, force, settles, results, follow-ups (see read_jobs)
-- reply  '1' or '0' per settle, then one letter per follow-up (see add)
--
-- Only the last token given out may complete a job, and only once; a job that was cancelled
-- meanwhile ends as that, and the answer is '0'. With force the id is enough, whoever holds
-- it. Follow-ups are added only when the job was completed.

local again = begin()
if again then return again end

local groups, at = read_settles(5)
local results
results, at = read_results(at)
local follow_ups = read_jobs(at)
if #follow_ups > 0 and (#groups ~= 1 or groups[1].first ~= groups[1].last) then
  refuse('INVALID', 'follow-ups go with one job')
end
check_types()
for _, set in ipairs({key.delayed, key.failed, key.ended}) do call('ZCARD', set) end
call('HLEN', key.results)

-- Whatever has a payload and has not ended, each id once.
local function standing()
  local ids, flags, numbers, taken = {}, {}, {}, {}
  for _, group in ipairs(groups) do
    for i = group.first, group.last do
      local id = ARGV[i]
      local there = not taken[id] and call('HEXISTS', key.jobs, id) == 1
        and not call('ZSCORE', key.ended, id)
      taken[id] = true
      flags[#flags + 1] = there and '1' or '0'
      if there then ids[#ids + 1], numbers[#numbers + 1] = id, #flags end
    end
  end
  return ids, nil, numbers, flags
end

local force = ARGV[4] == '1'
local ids, _, numbers, flags = (force and standing or held)(groups)
if force and #ids > 0 then
  call('ZREM', key.delayed, unpack(ids))
  call('ZREM', key.failed, unpack(ids))
end
local added = ''
if complete(ids, numbers, flags, results) and #follow_ups > 0 then
  added = choose(follow_ups)
  create(follow_ups)
end
return finish({table.concat(flags), added})
