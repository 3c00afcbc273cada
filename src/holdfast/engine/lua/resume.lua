-- resume: grant leases again
--
-- ARGV   time, caller, number
-- reply  1

local again = begin()
if again then return again end

this.asleep = call('LLEN', key.wake) == 0
this.grantable = call('ZCARD', key.ready) + call('ZCARD', key.turns) > 0
this.paused = false
call('HDEL', key.meta, 'paused')
this.told[1] = {kind = 'resumed', ids = {}}
return finish({1})
