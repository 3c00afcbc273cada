-- counts: one atomic look at how many jobs are where
--
-- ARGV   time
-- reply  ready, delayed, leased, parked, failed, ended, paused (1 or 0)

look()
local counted = {}
for i, set in ipairs({
  key.ready, key.delayed, key.leased, key.parked, key.failed, key.ended,
}) do
  counted[i] = call('ZCARD', set)
end
counted[7] = this.paused and 1 or 0
return counted
