-- counts: the number of jobs in each state, at one moment
--
-- ARGV   time
-- reply  ready, delayed, leased, parked, failed, ended, paused (1 or 0), number of staged chunks of
--        rows, number of claimed chunks of jobs

look()
local counted = {}
for i, set in ipairs({
  key.ready, key.delayed, key.leased, key.parked, key.failed, key.ended,
}) do
  counted[i] = call('ZCARD', set)
end
counted[7] = this.paused and 1 or 0
counted[8], counted[9] = call('HLEN', key.staged), call('HLEN', key.claims)
return counted
