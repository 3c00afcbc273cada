-- return_claim: leased -> ready | parked at no cost, for the next chunk of a claim
--
-- ARGV   time, caller, number, reader, epoch, number of the claim, to_the_back
-- reply  how many jobs were given back, 1 when there are more, else 0
--
-- The first call ends the claim: it cannot be read again.

local again = begin()
if again then return again end

local reader, epoch = reader_name(ARGV[4]), whole(ARGV[5], 1, MAX_INSTANT, 'epoch')
local n = whole(ARGV[6], 0, MAX_INSTANT, 'claim')
check_staging()
check_types()
check_requests()
local ours = reader_of(reader, epoch)
if n < number_in(ours, 'settled') then refuse('SETTLED', 'below settled') end
local entry = claim_entry(reader, n)
local kept, returned, done = entry_of(entry), 0, true
if kept and number_in(kept, 'first') < #sizes_in(kept) then
  returned, done = return_chunk(entry, kept, 'it was given back', ARGV[7] == '1')
end
settle_requests()
return finish({returned, done and 0 or 1})
