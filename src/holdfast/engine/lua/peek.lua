-- peek: jobs of one state, in its order: first to run, first due, or first to lapse; parked jobs by
-- request
--
-- ARGV   time, state letter (see add), how many to skip, how many to show
-- reply  ids, scores, payloads, facts ('' for none), holds ('' for none); 1 when jobs were left out
--        because their payloads do not fit into one reply, else 0

look()
local set = ({
  r = key.ready, l = key.leased, d = key.delayed, p = key.parked, f = key.failed, e = key.ended,
})[ARGV[2]]
if not set then refuse('INVALID', 'state') end
local first = whole(ARGV[3], 0, MAX_INSTANT, 'place')
local wanted = whole(ARGV[4], 1, MAX_JOBS, 'count')

local ids, scores, payloads, facts, holds, bytes, cut = {}, {}, {}, {}, {}, 0, 0
local found = call('ZRANGE', set, first, first + wanted - 1, 'WITHSCORES')
for i = 1, #found / 2 do
  local id = set == key.parked and read_parked(found[2 * i - 1]) or found[2 * i - 1]
  bytes = bytes + call('HSTRLEN', key.jobs, id)
  if i > 1 and bytes > MAX_BYTES then
    cut = 1
    break
  end
  ids[i], scores[i] = id, found[2 * i]
  payloads[i] = call('HGET', key.jobs, id) or ''
  facts[i] = call('HGET', key.facts, id) or ''
  holds[i] = call('HGET', key.holds, id) or ''
end
return {ids, scores, payloads, facts, holds, cut}
