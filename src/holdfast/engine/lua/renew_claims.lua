-- renew_claims: extend all claims of a reader
--
-- ARGV   time, caller, number, reader, epoch, claim_ms
-- reply  how many claims it holds

local again = begin()
if again then return again end

local reader, epoch = reader_name(ARGV[4]), whole(ARGV[5], 1, MAX_INSTANT, 'epoch')
local at = after_ms(whole(ARGV[6], 1, MAX_INSTANT, 'claim_ms'))
check_staging()
local ours = reader_of(reader, epoch)
local first, last, held_claims = number_in(ours, 'settled'), number_in(ours, 'next'), 0
for n = first, math.min(last, first + MAX_JOBS) do
  local entry = claim_entry(reader, n)
  local kept = entry_of(entry)
  if kept and not kept.over then
    call('ZADD', key.staging, at, entry)
    see_to_it(at)
    held_claims = held_claims + 1
  end
end
heard_of('reader ' .. reader)
book()
return finish({held_claims})
