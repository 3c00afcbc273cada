-- open_reader: open a reader, newer than all before it with this name
--
-- ARGV   time, caller, number, reader
-- reply  epoch, settled, next: claims with numbers from settled up to next may be open
--
-- Every call of a reader presents its epoch, so all earlier readers are fenced off. A reader that
-- makes no call for 100 days is forgotten.

local again = begin()
if again then return again end

local reader = reader_name(ARGV[4])
check_staging()
local kept = entry_of('reader ' .. reader) or {}
local epoch = number_in(kept, 'epoch') + 1
local done, following = number_in(kept, 'settled'), number_in(kept, 'next')
enter('reader ' .. reader, {epoch = epoch, settled = done, next = following}, after_ms(GONE_MS))
return finish({epoch, done, following})
