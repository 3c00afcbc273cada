-- adopt: list the attempts whose chunks a write will commit
--
-- ARGV   time, caller, number, write, writer ('' = none), batch, number of the list ('' = none),
--        keep_for_ms, how many requests, the requests that the rows name, then per attempt:
--        attempt, chunks
-- reply  '1', or 'c' when this was committed before
--
-- Refused if a chunk is gone, or a request is not open. A list can be replaced until the write is
-- committed. Attempts that are not committed in time are forgotten.

local again = begin()
if again then return again end

local write, writer = name(ARGV[4], 'write'), ARGV[5]
local batch = whole(ARGV[6], 0, MAX_INSTANT, 'batch')
local number = ARGV[7] ~= '' and whole(ARGV[7], 0, MAX_JOBS - 1, 'list')
local keep_for = whole(ARGV[8], 1, MAX_INSTANT, 'keep_for')
local n_requests = whole(ARGV[9], 0, MAX_JOBS, 'requests')
local first = 10 + n_requests
if not writer or #writer > MAX_NAME then refuse('INVALID', 'writer') end
if n_requests > 0 and not ARGV[first - 1] then refuse('INVALID', 'requests') end
local sent = #ARGV - first + 1
if sent % 2 ~= 0 or sent > 2 * MAX_JOBS or sent > 0 and not number then
  refuse('INVALID', 'attempts')
end
for i = first, #ARGV, 2 do
  attempt_name(ARGV[i])
  whole(ARGV[i + 1], 1, MAX_INSTANT, 'chunks')
end
for i = 10, first - 1 do owner_name(ARGV[i]) end
check_staging()
call('HLEN', key.requests)
if is_committed(write, writer, batch) then return finish({'c'}) end

for i = 10, first - 1 do
  local record = read_request(call('HGET', key.requests, ARGV[i]))
  if not record or record.group == 1 or record.sealed == 1 then
    refuse('CLOSED', string.format('%d', i - 10))
  end
end
local list, entry = {}, string.format('winners %d ', number or 0) .. write
local ledger, times = {}, {}
for i = first, #ARGV, 2 do
  local attempt, chunks = 'attempt ' .. ARGV[i], tonumber(ARGV[i + 1])
  local kept = entry_of(attempt)
  -- An attempt that another list has adopted counts as gone.
  if not kept or kept.chunks ~= chunks or kept.of and kept.of ~= entry then
    refuse('GONE', string.format('%d', n_requests + (i - first) / 2))
  end
  list[#list + 1], list[#list + 2] = ARGV[i], chunks
  kept.of = entry
  ledger[#ledger + 1], ledger[#ledger + 2] = attempt, cmsgpack.pack(kept)
  times[#times + 1], times[#times + 2] = MAX_INSTANT, attempt
end

if #list > 0 then
  -- An earlier list with this number may have named other attempts.
  local before = entry_of(entry)
  if before and cmsgpack.pack(before) ~= cmsgpack.pack(list) then disown(entry) end
  call('HSET', key.ledger, unpack(ledger))
  call('ZADD', key.staging, unpack(times))
  enter(entry, list, after_ms(keep_for))
end
return finish({'1'})
