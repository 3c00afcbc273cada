-- read_claim: the jobs of one chunk of a claim; changes nothing
--
-- ARGV   time, reader, epoch, number of the claim, number of the chunk
-- reply  ids, payloads, facts ('' for none; empty when no job has any)
--
-- Always the same jobs in the same order, or none: a claim that is over is refused, and so is a
-- chunk that has lost a job.

look()
local reader, epoch = reader_name(ARGV[2]), whole(ARGV[3], 1, MAX_INSTANT, 'epoch')
local n = whole(ARGV[4], 0, MAX_INSTANT, 'claim')
local number = whole(ARGV[5], 0, MAX_INSTANT, 'chunk')
local ours = reader_of(reader, epoch)
if n < number_in(ours, 'settled') then refuse('SETTLED', 'below settled') end
local kept = entry_of(claim_entry(reader, n)) or {}
refuse_what_is_over(kept)
if number >= #sizes_in(kept) then refuse('WRONG', 'there is no such chunk') end
if number < number_in(kept, 'first') then refuse('SETTLED', 'below settled') end
local ids, _, claimed = claimed_in(reader, n, number)
local payloads = #ids > 0 and call('HMGET', key.jobs, unpack(ids)) or {}
local facts = {}
if #ids > 0 and call('HLEN', key.facts) > 0 then facts = call('HMGET', key.facts, unpack(ids)) end
if #ids == 0 or #ids < claimed then refuse('WRONG', 'a job of the claim was taken away') end
for i = 1, #ids do
  if not payloads[i] then refuse('WRONG', 'a job of the claim was taken away') end
end
for i = 1, #facts do facts[i] = facts[i] or '' end
return {ids, payloads, facts}
