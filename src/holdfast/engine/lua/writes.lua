-- Transitions of writes: rows are staged by tasks, adopted and committed once, published.

-- stage: nothing -> staged: one chunk of the rows that a task writes
--
-- ARGV   time, caller, number, attempt, number of the chunk, keep_for_ms, chunk (see read_chunk)
-- reply  how many chunks the attempt has
--
-- The rows become jobs when the write is committed. Chunks must come in order; a chunk that is
-- there already is a repetition and counts once. Chunks that are not adopted in time are forgotten.
function transition.stage()
  local again = begin()
  if again then return again end

  local attempt, number = attempt_name(args[4]), whole(args[5], 0, MAX_INSTANT, 'chunk')
  local keep_for, bytes = whole(args[6], 1, MAX_INSTANT, 'keep_for'), args[7]
  if not bytes then refuse('INVALID', 'chunk') end
  read_chunk(bytes)
  check_staging()
  local entry = 'attempt ' .. attempt
  local kept = entry_of(entry) or {chunks = 0}
  local chunks = number_in(kept, 'chunks')
  if kept.of then refuse('WRONG', 'what is staged is about to be committed') end
  if number > chunks then refuse('GONE', '0') end

  if number == chunks then
    kept.chunks = chunks + 1
    call('HSET', key.staged, chunk_field(attempt, number), bytes)
  end
  enter(entry, kept, after_ms(keep_for))
  return finish({kept.chunks})
end

-- adopt: list the attempts whose chunks a write will commit
--
-- ARGV   time, caller, number, write, writer ('' = none), batch, number of the list ('' = none),
--        keep_for_ms, how many requests, the requests that the rows name, then per attempt:
--        attempt, chunks
-- reply  '1', or 'c' when this was committed before
--
-- Refused if a chunk is gone, or a request is not open. A list can be replaced until the write is
-- committed. Attempts that are not committed in time are forgotten.
function transition.adopt()
  local again = begin()
  if again then return again end

  local write, writer = name(args[4], 'write'), args[5]
  local batch = whole(args[6], 0, MAX_INSTANT, 'batch')
  local number = args[7] ~= '' and whole(args[7], 0, MAX_JOBS - 1, 'list')
  local keep_for = whole(args[8], 1, MAX_INSTANT, 'keep_for')
  local n_requests = whole(args[9], 0, MAX_JOBS, 'requests')
  local first = 10 + n_requests
  if not writer or #writer > MAX_NAME then refuse('INVALID', 'writer') end
  if n_requests > 0 and not args[first - 1] then refuse('INVALID', 'requests') end
  local sent = #args - first + 1
  if sent % 2 ~= 0 or sent > 2 * MAX_JOBS or sent > 0 and not number then
    refuse('INVALID', 'attempts')
  end
  for i = first, #args, 2 do
    attempt_name(args[i])
    whole(args[i + 1], 1, MAX_INSTANT, 'chunks')
  end
  for i = 10, first - 1 do owner_name(args[i]) end
  check_staging()
  call('HLEN', key.requests)
  if is_committed(write, writer, batch) then return finish({'c'}) end

  for i = 10, first - 1 do
    local record = read_request(call('HGET', key.requests, args[i]))
    if not record or record.group == 1 or record.sealed == 1 then
      refuse('CLOSED', string.format('%d', i - 10))
    end
  end
  local list, entry = {}, string.format('winners %d ', number or 0) .. write
  local ledger, times = {}, {}
  for i = first, #args, 2 do
    local attempt, chunks = 'attempt ' .. args[i], tonumber(args[i + 1])
    local kept = entry_of(attempt)
    -- An attempt that another list has adopted counts as gone.
    if not kept or kept.chunks ~= chunks or kept.of and kept.of ~= entry then
      refuse('GONE', string.format('%d', n_requests + (i - first) / 2))
    end
    list[#list + 1], list[#list + 2] = args[i], chunks
    kept.of = entry
    ledger[#ledger + 1], ledger[#ledger + 2] = attempt, cmsgpack.pack(kept)
    times[#times + 1], times[#times + 2] = MAX_INSTANT, attempt
  end

  if #list > 0 then
    -- An earlier list with this number may have named other attempts.
    local before = entry_of(entry)
    if before and cmsgpack.pack(before) ~= cmsgpack.pack(list) then disown(entry) end
    call('HSET', key.ledger, unpack(ledger))
    call('ZADD', key.staging, unpack(times))
    enter(entry, list, after_ms(keep_for))
  end
  return finish({'1'})
end

-- commit: all rows that a write has adopted shall become jobs: this call is the commit
--
-- ARGV   time, caller, number, write, writer ('' = none), batch, lists of winners, keep_for_ms, how
--        ids that are taken are changed (see update_of, '' = not at all)
-- reply  '1', or 'c' when this was committed before
--
-- After this call no row is refused any more: calls of publish and lease turn the rows into jobs.
function transition.commit()
  local again = begin()
  if again then return again end

  local write, writer = name(args[4], 'write'), args[5]
  local batch, lists = whole(args[6], 0, MAX_INSTANT, 'batch'), whole(args[7], 0, MAX_JOBS, 'lists')
  local keep_for, how = whole(args[8], 1, MAX_INSTANT, 'keep_for'), args[9]
  if #writer > MAX_NAME then refuse('INVALID', 'writer') end
  if how ~= '' then update_of({}, '', how) end
  check_staging()
  this.asleep = call('LLEN', key.wake) == 0
  if is_committed(write, writer, batch) then return finish({'c'}) end
  local winners = {}
  for number = 0, lists - 1 do
    local entry = string.format('winners %d ', number) .. write
    if call('HEXISTS', key.ledger, entry) == 0 then refuse('GONE', '0') end
    winners[2 * number + 1], winners[2 * number + 2] = MAX_INSTANT, entry
  end

  if lists > 0 then
    call('ZADD', key.staging, unpack(winners))
    -- A time before 0 means: to be published. The oldest commit comes first.
    enter('commit ' .. write, {
      how = string.sub(how, 1, 4), only = #how > 4 and string.sub(how, 5) or nil,
      keep_ms = keep_for, lists = lists, list = 0, place = 0,
    }, this.now - MAX_INSTANT)
    this.grantable = true
  else
    enter('commit ' .. write, {published_at = this.now}, after_ms(keep_for))
  end
  if writer ~= '' then enter('writer ' .. writer, {batch = batch}, after_ms(GONE_MS)) end
  tell('committed', {write})
  return finish({'1'})
end

-- publish: staged -> ready | delayed | parked, for a write that is committed
--
-- ARGV   time, caller, number, write ('' = the oldest that is committed)
-- reply  how many rows became jobs, 1 when there is more to publish, else 0
--
-- The call that turns a chunk into jobs also removes the chunk, so no row becomes two jobs. A row
-- whose id is taken is ignored, or changes that job, as the write says.
function transition.publish()
  local again = begin()
  if again then return again end

  local write = args[4]
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
end

-- abort: staged -> nothing, for attempts that are not committed
--
-- ARGV   time, caller, number, attempts
-- reply  '1' per attempt that is finished with, '0' per attempt with chunks left: ask again
--
-- A list of winners that names an aborted attempt can no longer be committed.
function transition.abort()
  local again = begin()
  if again then return again end

  local n, flags, budget = #args - 3, {}, MAX_CHUNKS
  if n < 1 or n > MAX_JOBS then refuse('INVALID', 'attempts') end
  for i = 4, #args do attempt_name(args[i]) end
  check_staging()
  for i = 4, #args do
    local entry = 'attempt ' .. args[i]
    local kept, done = entry_of(entry), true
    local write = kept and type(kept.of) == 'string' and write_of(kept.of)
    local committed = write and call('HEXISTS', key.ledger, 'commit ' .. write) == 1
    if kept and not committed then
      if write then disown(kept.of) end
      if budget > 0 then
        budget = drop_attempt(entry, entry_of(entry), budget)
      end
      done = call('HEXISTS', key.ledger, entry) == 0
    end
    flags[#flags + 1] = done and '1' or '0'
  end
  return finish({table.concat(flags)})
end

-- ledger: the records of attempts, writes, writers, readers and claims; changes nothing
--
-- ARGV   time, the names of the records (see shared/staging.lua)
-- reply  the records, '' for each that is missing
function transition.ledger()
  look()
  if #args < 2 or #args > MAX_JOBS then refuse('INVALID', 'names') end
  local records = {}
  for i = 2, #args do
    if #args[i] < 1 or #args[i] > 2 * MAX_NAME then refuse('INVALID', 'name') end
    records[i - 1] = call('HGET', key.ledger, args[i]) or ''
  end
  return records
end
