-- claim: ready | parked -> leased, as the next chunk of a claim
--
-- ARGV   time, caller, number, reader, epoch, number of the claim, number of the chunk, claim_ms,
--        how many jobs (0 = none), to_the_back, seal ('1' = this is the last chunk)
-- reply  1 when the claim is sealed, else 0; then the number of jobs in each chunk
--
-- A chunk that exists already is a repetition. A claim is sealed by its last chunk, or when there
-- is nothing more to take; then the next claim may begin. A call for a sealed claim returns it as
-- it is. Its jobs do not lapse one by one: the claim lapses as a whole, claim_ms after the last
-- call of claim or renew_claims.

local again = begin()
if again then return again end

local reader, epoch = reader_name(ARGV[4]), whole(ARGV[5], 1, MAX_INSTANT, 'epoch')
local n = whole(ARGV[6], 0, MAX_INSTANT, 'claim')
local number = whole(ARGV[7], 0, MAX_INSTANT, 'chunk')
local claim_ms = whole(ARGV[8], 1, MAX_INSTANT, 'claim_ms')
local wanted = whole(ARGV[9], 0, MAX_JOBS, 'count')
local to_the_back, seal = ARGV[10] == '1', ARGV[11] == '1'
check_staging()
local ours = reader_of(reader, epoch)
local done, following = number_in(ours, 'settled'), number_in(ours, 'next')
local entry = claim_entry(reader, n)
local kept = entry_of(entry) or {first = 0, sizes = {}}
local sizes = sizes_in(kept)
if n < done then refuse('SETTLED', 'below settled') end
refuse_what_is_over(kept)
if n > following or n < following and #sizes == 0 then
  refuse('WRONG', 'the next claim is another')
end
if n == following and following - done >= MAX_JOBS then refuse('WRONG', 'settle claims first') end
if number > #sizes and not kept.sealed then refuse('WRONG', 'the next chunk is another') end
if number >= MAX_JOBS then refuse('INVALID', 'chunk') end
local found = overdue()
check_types()

heard_of('reader ' .. reader)
-- The claim must not lapse while it grows.
if #sizes > 0 then enter(entry, kept, after_ms(claim_ms)) end
if number == #sizes and not kept.sealed then
  if found then maintain(found, to_the_back, wanted) end
  if this.met then decide_met() end
  local ids, ranks = {}, {}
  if wanted > 0 and not this.paused then ids, ranks = take_best(wanted, false) end
  if #ids > 0 then
    grant_all(ids, ranks, claim_token(reader, n), MAX_INSTANT)
    call('HSET', key.claims, claim_field(reader, n, number), cmsgpack.pack(ids))
    sizes[number + 1] = #ids
  end
  settle_requests()
  local more = has_more()
  this.grantable = #ids > 0 and more
  local drained = #ids < wanted and not this.unpublished and (#ids == 0 or not more)
  if seal and #ids == wanted or drained then
    kept.sealed = #sizes > 0 or nil
    if kept.sealed then
      ours.next = n + 1
      enter('reader ' .. reader, ours, after_ms(GONE_MS))
      tell('claimed', {entry})
    end
  end
end
if #sizes > 0 then
  kept.sizes = sizes
  enter(entry, kept, after_ms(claim_ms))
end
return finish({kept.sealed and 1 or 0, unpack(sizes)})
