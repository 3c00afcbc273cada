-- recount: set the counters of requests to what the caller has counted
--
-- ARGV   time, caller, number, stamp (see audit), then per request or group: its name, how many
--        of its jobs are leased, failed, parked, delayed; how many of its parts are on record as
--        handled, cancelled; how many have a result
-- reply  '1'; '0' when the queue has changed since they were counted

local again = begin()
if again then return again end

local tallies = {}
for at = 5, #ARGV, 8 do
  tallies[#tallies + 1] = {
    owner = owner_name(ARGV[at]),
    running = whole(ARGV[at + 1], 0, MAX_INSTANT, 'running'),
    failed = whole(ARGV[at + 2], 0, MAX_INSTANT, 'failed'),
    parked = whole(ARGV[at + 3], 0, MAX_INSTANT, 'parked'),
    delayed = whole(ARGV[at + 4], 0, MAX_INSTANT, 'delayed'),
    handled = whole(ARGV[at + 5], 0, MAX_INSTANT, 'handled'),
    cancelled = whole(ARGV[at + 6], 0, MAX_INSTANT, 'cancelled'),
    results = whole(ARGV[at + 7], 0, MAX_INSTANT, 'results'),
  }
end
if #tallies > MAX_JOBS then refuse('INVALID', 'requests') end
check_types()
check_requests()
if stamp() ~= ARGV[4] then return finish({'0'}) end

local changed = {}
for _, tally in ipairs(tallies) do
  local record = request_of(tally.owner)
  if record then
    record.running, record.failed, record.parked = tally.running, tally.failed, tally.parked
    local there = tally.running + tally.failed + tally.parked + tally.delayed
    if record.group == 1 then
      record.total = there
    else
      local ended = tally.handled + tally.cancelled
      record.handled, record.cancelled = tally.handled, tally.cancelled
      record.results, record.forgotten = tally.results, 0
      record.total = math.max(record.total, there + ended)
      record.done = record.total - there - ended
    end
    changed[#changed + 1] = tally.owner
  end
end
tell('changed', changed)
settle_requests()
return finish({'1'})
