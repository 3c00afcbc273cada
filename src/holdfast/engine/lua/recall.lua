-- recall: leased -> ready, for leases of one holder or held for too long, before they lapse
--
-- ARGV   time, caller, number, holder ('' = any), held for longer than (ms, '' = any), to_the_back,
--        place in `leased` ('' = its end), how many ids to look at
-- reply  how many were taken back, next place (0 = done)
--
-- Counts a lapse, as reclaim does, but does not wait after a silence. Jobs that a reader has
-- claimed are not taken back.

local again = begin()
if again then return again end

local holder = ARGV[4]
local longer = ARGV[5] ~= '' and whole(ARGV[5], 0, MAX_INSTANT, 'held') or -MAX_INSTANT
local from = ARGV[7] ~= '' and whole(ARGV[7], 0, MAX_INSTANT, 'place')
local budget = whole(ARGV[8], 1, MAX_JOBS, 'count')
if #holder > MAX_NAME then refuse('INVALID', 'holder') end
check_types()
call('HLEN', key.workers)

local stop = math.min(from or math.huge, call('ZCARD', key.leased)) - 1
local start = math.max(0, stop - budget + 1)
local ids, holds = {}, {}
if stop >= 0 then
  local walked = call('ZRANGE', key.leased, start, stop)
  local found = call('HMGET', key.holds, unpack(walked))
  for i, id in ipairs(walked) do
    local token, leased_at = string.match(found[i] or '', '^(%S+) (%d+) ')
    local claimed = string.sub(found[i] or '', 1, 6) == 'claim:'  -- A claim goes back whole.
    local mine = holder == '' or token and string.sub(token, 1, #holder + 1) == holder .. '.'
    if mine and not claimed and this.now - (leased_at or 0) > longer then
      ids[#ids + 1], holds[#holds + 1] = id, found[i]
    end
  end
  if #ids > 0 then
    local reason = holder == '' and 'held for too long' or 'its worker failed'
    tell('reclaimed', count_lapses(ids, holds, reason, 0, ARGV[6] == '1', false))
  end
end
if holder ~= '' and start == 0 then call('HDEL', key.workers, holder) end
settle_requests()
return finish({#ids, start})
