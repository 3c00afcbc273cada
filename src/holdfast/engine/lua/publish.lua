-- publish: staged -> ready | delayed | parked, for a write that is committed
--
-- ARGV   time, caller, number, write ('' = the oldest that is committed)
-- reply  how many rows became jobs, 1 when there is more to publish, else 0
--
-- The call that turns a chunk into jobs also removes the chunk, so no row becomes two jobs. A row
-- whose id is taken is ignored, or changes that job, as the write says.

local again = begin()
if again then return again end

local write = ARGV[4]
if not write or #write > MAX_NAME then refuse('INVALID', 'write') end
check_staging()
check_types()
check_requests()
local rows, more = publish_some(write ~= '' and 'commit ' .. write or nil)
if write == '' then
  more = #call('ZRANGE', key.staging, '-inf', '(0', 'BYSCORE', 'LIMIT', 0, 1) > 0
end
settle_requests()
return finish({rows, more and 1 or 0})
