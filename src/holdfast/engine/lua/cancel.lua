-- cancel: ready | delayed | parked | failed -> gone; leased -> marked, to end as cancelled
--
-- ARGV   time, caller, number, running, ids
-- reply  '1' per id if this call prevents a run of the job, else '0'
--
-- With running '0' a leased job runs on, and only its successor is removed.

local again = begin()
if again then return again end

local n = #ARGV - 4
if n < 1 or n > MAX_JOBS then refuse('INVALID', 'ids') end
for i = 5, #ARGV do name(ARGV[i], 'id') end
check_types()
for _, set in ipairs({key.delayed, key.failed, key.ended}) do call('ZCARD', set) end
call('HLEN', key.results)

local flags = {}
for i = 1, n do flags[i] = cancel_job(ARGV[i + 4], ARGV[4] == '1') and '1' or '0' end
settle_requests()
return finish({table.concat(flags)})
