-- Transitions of readers, and of the claims by which they take jobs chunk by chunk.

-- open_reader: open a reader, newer than all before it with this name
--
-- ARGV   time, caller, number, reader
-- reply  epoch, settled, next: claims with numbers from settled up to next may be open
--
-- Every call of a reader presents its epoch, so all earlier readers are fenced off. A reader that
-- makes no call for 100 days is forgotten.
function transition.open_reader()
  local again = begin()
  if again then return again end

  local reader = reader_name(args[4])
  check_staging()
  local kept = entry_of('reader ' .. reader) or {}
  local epoch = number_in(kept, 'epoch') + 1
  local done, following = number_in(kept, 'settled'), number_in(kept, 'next')
  enter('reader ' .. reader, {epoch = epoch, settled = done, next = following}, after_ms(GONE_MS))
  return finish({epoch, done, following})
end

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
function transition.claim()
  local again = begin()
  if again then return again end

  local reader, epoch = reader_name(args[4]), whole(args[5], 1, MAX_INSTANT, 'epoch')
  local n = whole(args[6], 0, MAX_INSTANT, 'claim')
  local number = whole(args[7], 0, MAX_INSTANT, 'chunk')
  local claim_ms = whole(args[8], 1, MAX_INSTANT, 'claim_ms')
  local wanted = whole(args[9], 0, MAX_JOBS, 'count')
  local to_the_back, seal = args[10] == '1', args[11] == '1'
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
end

-- read_claim: the jobs of one chunk of a claim; changes nothing
--
-- ARGV   time, reader, epoch, number of the claim, number of the chunk
-- reply  ids, payloads, facts ('' for none; empty when no job has any)
--
-- Always the same jobs in the same order, or none: a claim that is over is refused, and so is a
-- chunk that has lost a job.
function transition.read_claim()
  look()
  local reader, epoch = reader_name(args[2]), whole(args[3], 1, MAX_INSTANT, 'epoch')
  local n = whole(args[4], 0, MAX_INSTANT, 'claim')
  local number = whole(args[5], 0, MAX_INSTANT, 'chunk')
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
end

-- renew_claims: extend all claims of a reader
--
-- ARGV   time, caller, number, reader, epoch, claim_ms
-- reply  how many claims it holds
function transition.renew_claims()
  local again = begin()
  if again then return again end

  local reader, epoch = reader_name(args[4]), whole(args[5], 1, MAX_INSTANT, 'epoch')
  local at = after_ms(whole(args[6], 1, MAX_INSTANT, 'claim_ms'))
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
end

-- settle_claims: leased -> gone, or its ending remembered, for the next chunk of a reader's claims
--
-- ARGV   time, caller, number, reader, epoch, the number below which all claims are settled
-- reply  how many jobs were completed, 1 when there is more to settle, else 0
--
-- If a claim has lapsed in the meantime, the jobs that it still has are completed, and the claim is
-- forgotten.
function transition.settle_claims()
  local again = begin()
  if again then return again end

  local reader, epoch = reader_name(args[4]), whole(args[5], 1, MAX_INSTANT, 'epoch')
  local below = whole(args[6], 0, MAX_INSTANT, 'claim')
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
end

-- return_claim: leased -> ready | parked at no cost, for the next chunk of a claim
--
-- ARGV   time, caller, number, reader, epoch, number of the claim, to_the_back
-- reply  how many jobs were given back, 1 when there are more, else 0
--
-- The first call ends the claim: it cannot be read again.
function transition.return_claim()
  local again = begin()
  if again then return again end

  local reader, epoch = reader_name(args[4]), whole(args[5], 1, MAX_INSTANT, 'epoch')
  local n = whole(args[6], 0, MAX_INSTANT, 'claim')
  check_staging()
  check_types()
  check_requests()
  local ours = reader_of(reader, epoch)
  if n < number_in(ours, 'settled') then refuse('SETTLED', 'below settled') end
  local entry = claim_entry(reader, n)
  local kept, returned, done = entry_of(entry), 0, true
  if kept and number_in(kept, 'first') < #sizes_in(kept) then
    returned, done = return_chunk(entry, kept, 'it was given back', args[7] == '1')
  end
  settle_requests()
  return finish({returned, done and 0 or 1})
end
