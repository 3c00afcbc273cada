-- cancel: ready | delayed | failed -> gone; leased -> marked, to end as cancelled
--
-- ARGV   time, caller, number, running, ids
-- reply  '1' or '0' per id: the job will not run again because of this call
--
-- With running '0' a job that is leased goes on, and only its successor is taken away.

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
