-- requests: the records of one request, or of some
--
-- ARGV   time, request ('' = some of them), place in `terms` ('' = its end), how many to look at
-- reply  now, next place (0 = done), then per request its name, its record, and its score in
--        `terms`: when lease or tidy must process it ('' if it has none)

look()
local names, start = {ARGV[2]}, 0
if ARGV[2] == '' then
  local from = ARGV[3] ~= '' and whole(ARGV[3], 0, MAX_INSTANT, 'place') or math.huge
  local budget = whole(ARGV[4], 1, MAX_JOBS, 'count')
  local stop = math.min(from, call('ZCARD', key.terms)) - 1
  start = math.max(0, stop - budget + 1)
  names = stop >= 0 and call('ZRANGE', key.terms, start, stop) or {}
end
local found = {string.format('%d', this.now), start}
for _, request in ipairs(names) do
  local packed = call('HGET', key.requests, request)
  if packed then
    found[#found + 1] = request
    found[#found + 1] = packed
    found[#found + 1] = call('ZSCORE', key.terms, request) or ''
  end
end
return found
