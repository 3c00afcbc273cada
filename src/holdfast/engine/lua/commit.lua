-- commit: all rows that a write has adopted shall become jobs: this call is the commit
--
-- ARGV   time, caller, number, write, writer ('' = none), batch, lists of winners, keep_for_ms, how
--        ids that are taken are changed (see update_of, '' = not at all)
-- reply  '1', or 'c' when this was committed before
--
-- After this call no row is refused any more: calls of publish and lease turn the rows into jobs.

local again = begin()
if again then return again end

local write, writer = name(ARGV[4], 'write'), ARGV[5]
local batch, lists = whole(ARGV[6], 0, MAX_INSTANT, 'batch'), whole(ARGV[7], 0, MAX_JOBS, 'lists')
local keep_for, how = whole(ARGV[8], 1, MAX_INSTANT, 'keep_for'), ARGV[9]
if #writer > MAX_NAME then refuse('INVALID', 'writer') end
if how ~= '' then update_of({}, '', how) end
check_staging()
this.asleep = call('LLEN', key.wake) == 0
if is_committed(write, writer, batch) then return finish({'c'}) end
local winners = {}
for number = 0, lists - 1 do
  local entry = string.format('winners %d ', number) .. write
  if call('HEXISTS', key.ledger, entry) == 0 then refuse('GONE', '0') end
  winners[2 * number + 1], winners[2 * number + 2] = MAX_INSTANT, entry
end

if lists > 0 then
  call('ZADD', key.staging, unpack(winners))
  -- A time before 0 means: to be published. The oldest commit comes first.
  enter('commit ' .. write, {
    how = string.sub(how, 1, 4), only = #how > 4 and string.sub(how, 5) or nil,
    keep_ms = keep_for, lists = lists, list = 0, place = 0,
  }, this.now - MAX_INSTANT)
  this.grantable = true
else
  enter('commit ' .. write, {published_at = this.now}, after_ms(keep_for))
end
if writer ~= '' then enter('writer ' .. writer, {batch = batch}, after_ms(GONE_MS)) end
tell('committed', {write})
return finish({'1'})
