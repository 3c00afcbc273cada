-- release: leased -> ready | parked at its rank | delayed; or failed, if it counts as a lapse
--
-- ARGV   time, caller, number, after ('' or ms), to_the_back, lapsed ('' or the reason),
--        handlings (see read_handlings), settles
-- reply  '1' or '0' per settle
--
-- Costs the job nothing, unless `lapsed` says why the run did not answer: then it counts a lapse. A
-- job that was cancelled in the meantime ends as cancelled. A job that its failure handler releases
-- is failed as before.

local again = begin()
if again then return again end

local after = ARGV[4] ~= '' and whole(ARGV[4], 0, MAX_INSTANT, 'after') or 0
local to_the_back, lapsed = ARGV[5] == '1', ARGV[6]
if not lapsed or #lapsed > MAX_ERROR then refuse('INVALID', 'lapsed') end
local handlings = read_handlings(ARGV[7])
local groups = read_settles(8)
check_types()
call('ZCARD', key.delayed)
call('ZCARD', key.failed)

local ids, holds, _, flags = held(groups, true)
local due_at = after > 0 and after_ms(after) or 0

if #ids > 0 then
  if lapsed ~= '' then
    tell('released', count_lapses(ids, holds, lapsed, due_at, to_the_back, true, handlings))
  else
    release_all(ids, holds, due_at, to_the_back)
  end
end
settle_requests()
return finish({table.concat(flags)})
