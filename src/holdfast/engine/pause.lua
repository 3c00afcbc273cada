-- pause: no lease is granted until resume. What is leased goes on.
--
-- ARGV   time, caller, number
-- reply  1

local again = begin()
if again then return again end

note('paused', this.now)
this.events[1] = {'paused', 0, {}}
return finish({1})
