-- tidy: promote, reclaim and prune now, without leasing anything
--
-- ARGV   time, caller, number, to_the_back, force
-- reply  promoted, reclaimed, pruned: each at most MAX_JOBS, so ask until none is
--
-- With force what lapsed is reclaimed even after a silence of everybody.

local again = begin()
if again then return again end

local found = overdue(ARGV[5] == '1')
check_types()
return finish({maintain(found, ARGV[4] == '1')})
