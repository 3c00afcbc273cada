-- settle_claims: leased -> gone, or its ending remembered, for the next chunk of a reader's claims
--
-- ARGV   time, caller, number, reader, epoch, the number below which all claims are settled
-- reply  how many jobs were completed, 1 when there is more to settle, else 0
--
-- If a claim has lapsed in the meantime, the jobs that it still has are completed, and the claim is
-- forgotten.

local again = begin()
if again then return again end

local reader, epoch = reader_name(ARGV[4]), whole(ARGV[5], 1, MAX_INSTANT, 'epoch')
local below = whole(ARGV[6], 0, MAX_INSTANT, 'claim')
check_staging()
check_types()
check_requests()
local ours = reader_of(reader, epoch)
local n, completed = number_in(ours, 'settled'), 0
if below > number_in(ours, 'next') then refuse('WRONG', 'there is no such claim yet') end
if n < below then
  local entry = claim_entry(reader, n)
  local kept = entry_of(entry)
  local open = kept and number_in(kept, 'first') < #sizes_in(kept)
  if open then
    local ids, numbers, flags = claimed_in(reader, n, number_in(kept, 'first')), {}, {}
    for i = 1, #ids do numbers[i], flags[i] = i, '1' end
    complete(ids, numbers, flags, {}, {})
    for i = 1, #ids do completed = completed + tonumber(flags[i]) end
    local at = call('ZSCORE', key.staging, entry) or this.now
    open = not close_chunk(entry, kept, reader, n, tonumber(at))
  end
  if not open then
    strike(entry)
    ours.settled = n + 1
    enter('reader ' .. reader, ours, after_ms(GONE_MS))
    tell('settled', {entry})
  end
  n = number_in(ours, 'settled')
end
settle_requests()
return finish({completed, n < below and 1 or 0})
