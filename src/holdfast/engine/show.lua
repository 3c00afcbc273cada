-- show: all that is known about one job
--
-- ARGV   time, id
-- reply  now, state letter ('' = no job has this id; see add), score, jobs before it (when
--        ready, else -1), payload or false, facts or '', hold or '', 1 when a successor waits,
--        result or false, paused (1 or 0)

look()
local id = name(ARGV[2], 'id')
local state, score = '', '0'
for letter, set in pairs({
  r = key.ready, l = key.leased, d = key.delayed, f = key.failed, e = key.ended,
}) do
  local found = call('ZSCORE', set, id)
  if found then state, score = letter, found end
end
return {
  string.format('%d', this.now), state, score, state == 'r' and call('ZRANK', key.ready, id) or -1,
  call('HGET', key.jobs, id), call('HGET', key.facts, id) or '', call('HGET', key.holds, id) or '',
  call('HEXISTS', key.next, id), call('HGET', key.results, id), this.paused and 1 or 0,
}
