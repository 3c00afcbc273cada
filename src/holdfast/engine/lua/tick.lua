-- tick: nothing -> ready | delayed | parked, for the ticks of a schedule
--
-- ARGV   time, caller, number, schedule, seen ('' = none, '?' = only look), tick,
--        groups of jobs (see read_jobs)
-- reply  the time; the last tick of this schedule before this call ('' = none); '+' and one letter
--        per job (see add), or '' if another scheduler was first
--
-- Any number of schedulers may call. Only a call that presents the last tick may make the next
-- ones, so each tick is made once, even by a scheduler that was frozen for hours between looking
-- and making. A schedule that no call names for 100 days is forgotten.

local again = begin()
if again then return again end

local memory = 'tick ' .. name(ARGV[4], 'schedule')
local tick = whole(ARGV[6], 0, MAX_INSTANT, 'tick')
local groups = read_jobs(ARGV, 7)
local last = call('HGET', key.meta, memory)
last = last and string.find(last, '^%d+$') and last or ''
check_staging()
if last ~= ARGV[5] then
  if last ~= '' then heard_of(memory, {}) end
  return finish({this.at, last, ''})
end

check_groups(groups)
local flags = choose(groups)
create_each(groups)
settle_requests()
note(memory, string.format('%d', tick))
heard_of(memory, {})
return finish({this.at, last, '+' .. flags})
