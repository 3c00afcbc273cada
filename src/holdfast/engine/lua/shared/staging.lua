-- ledger: records of writes, readers and schedules, and when each must be processed
--
-- Every record of `ledger` is in `staging` under the same name, with the time at which it must be
-- processed. The first word of the name is its kind; the record is a msgpack map or list:
--     attempt <attempt>       chunks: how many chunks it staged, in `staged` as <attempt>/<number>;
--                             first: how many of them are published; of: the list of winners that
--                             names it
--     winners <k> <write>     the k-th list of attempts that a write adopts: attempt, chunks, …
--     commit <write>          how (see update_of, '' = ignore), keep_ms; lists, and how far they
--                             are published: list, place; or published_at
--     tick <schedule>         nothing: `meta` has the last tick under the same name
--     writer <writer>         batch: the last batch that it committed
--     reader <reader>         epoch; settled, next: the numbers of its claims that may be open
--     claim <n> <reader>      sizes: how many jobs each chunk has; first: how many chunks are
--                             finished; sealed; over: why it can no longer be read
-- Readers, writers and schedules have the time at which they are forgotten: GONE_MS after the
-- last call that names them. A write that is committed and not yet published has a time below 0,
-- so it comes first. `meta` has the first of all times, or an earlier one: a call that has nothing
-- to do here learns that from the fields that every call reads.

local function entry_of(entry)
  local ok, kept = pcall(cmsgpack.unpack, call('HGET', key.ledger, entry) or '')
  return ok and type(kept) == 'table' and kept or nil
end

-- An entry must be processed at this time.
local function see_to_it(at)
  if this.staging and this.staging <= at then return end
  this.staging = at
  note('staging', at)
end

local function enter(entry, kept, at)
  call('HSET', key.ledger, entry, cmsgpack.pack(kept))
  call('ZADD', key.staging, at, entry)
  see_to_it(at)
  book()
end

local function strike(entry)
  call('HDEL', key.ledger, entry)
  call('ZREM', key.staging, entry)
  book()
end

-- A reader or a schedule is in use: forget it later. Written at most once in HEARD_MS. kept: the
-- record to write if the ledger has none.
local function heard_of(entry, kept)
  local at = tonumber(call('ZSCORE', key.staging, entry) or 0)
  local latest = after_ms(GONE_MS)
  if at <= latest and at > latest - HEARD_MS then return end
  if kept and at == 0 then call('HSET', key.ledger, entry, cmsgpack.pack(kept)) end
  call('ZADD', key.staging, latest, entry)
  see_to_it(latest)
  book()
end

-- How many jobs each chunk of a claim has.
local function sizes_in(kept)
  return type(kept.sizes) == 'table' and kept.sizes or {}
end

-- The write that a list of winners belongs to.
local function write_of(entry)
  return string.match(entry, '^winners %d+ (.*)$')
end

-- The time for an entry that has lost it.
local function time_of(entry, kept)
  local kind = string.match(entry, '^%a+')
  local write = kind == 'winners' and write_of(entry)
  if kind == 'commit' and not kept.published_at then return this.now - MAX_INSTANT end
  if kind == 'claim' and number_in(kept, 'first') < #sizes_in(kept) then
    return after_ms(3600000)
  end
  if kind == 'claim' or kind == 'reader' or kind == 'writer' or kind == 'tick' then
    return after_ms(GONE_MS)
  end
  if kind == 'winners' and call('HEXISTS', key.ledger, 'commit ' .. write) == 0
    or kind == 'attempt' and not kept.of or kind == 'commit' then
    return after_ms(86400000)
  end
  return MAX_INSTANT
end

local function check_staging()
  call('ZCARD', key.staging)
  for _, hash in ipairs({key.staged, key.ledger, key.claims}) do call('HLEN', hash) end
end

-- ------------------------------------------------------------------- claiming

-- Batches of leases that a reader holds together. Call check_staging first.
--
-- The jobs of a claim are leased under one token and do not lapse one by one: the claim has one
-- time in `staging`. Its chunks are in `claims` as '<n>/<number> <reader>', each a msgpack list of
-- ids.

-- The name of a claim in the ledger, its token, and the field of one of its chunks.
local function claim_entry(reader, n)
  return string.format('claim %d ', n) .. reader
end

local function claim_token(reader, n)
  return 'claim:' .. reader .. string.format('.%d', n)
end

local function claim_field(reader, n, number)
  return string.format('%d/%d ', n, number) .. reader
end

local function reader_name(text)
  if #name(text, 'reader') > MAX_REQUEST or string.find(text, '%s') then
    refuse('INVALID', 'reader')
  end
  return text
end

-- The record of a reader. Refuses a caller whose epoch is not the current one.
local function reader_of(reader, epoch)
  local kept = entry_of('reader ' .. reader)
  if not kept or number_in(kept, 'epoch') ~= epoch then refuse('FENCED', 'a newer reader') end
  return kept
end

-- Whether this hold belongs to a claim that does not exist or has no jobs left.
local function is_claimed_by_nobody(hold)
  local reader, n = string.match(hold, '^claim:(%S*)%.(%d+) ')
  if not reader then return false end
  local kept = entry_of('claim ' .. n .. ' ' .. reader) or {}
  return number_in(kept, 'first') >= #sizes_in(kept)
end

local function refuse_what_is_over(kept)
  if kept.over then
    refuse('LAPSED', kept.over == 'it lapsed' and kept.over or 'it was given back')
  end
end

-- The jobs of a chunk that the claim still holds. Returns their ids, their holds, and how many jobs
-- the chunk had.
local function claimed_in(reader, n, number)
  local ok, ids = pcall(cmsgpack.unpack,
    call('HGET', key.claims, claim_field(reader, n, number)) or '')
  ok = ok and type(ids) == 'table' and #ids > 0 and #ids <= MAX_JOBS
  for i = 1, ok and #ids or 0 do ok = ok and type(ids[i]) == 'string' end
  if not ok then return {}, {}, 0 end
  local mine, holds, presented = {}, {}, claim_token(reader, n) .. ' '
  local length, leased = #presented, call('ZMSCORE', key.leased, unpack(ids))
  for i, hold in ipairs(call('HMGET', key.holds, unpack(ids))) do
    if hold and leased[i] and string.sub(hold, 1, length) == presented then
      mine[#mine + 1], holds[#holds + 1] = ids[i], hold
    end
  end
  return mine, holds, #ids
end

-- Remove one chunk of a claim. Returns whether it was the last one. Then the claim is removed too;
-- but if it was sealed and is over, its record stays, and says why.
local function close_chunk(entry, kept, reader, n, at)
  local first = number_in(kept, 'first')
  call('HDEL', key.claims, claim_field(reader, n, first))
  kept.first = first + 1
  if kept.first < #sizes_in(kept) then
    enter(entry, kept, at)
    return false
  elseif kept.over and kept.sealed then
    enter(entry, kept, after_ms(GONE_MS))  -- A reader that asks again learns why.
  else
    strike(entry)
  end
  return true
end

-- Forget a reader that is gone, and its claims, unless one of them is open.
local function forget_reader(entry, kept)
  local reader, first = string.sub(entry, 8), number_in(kept, 'settled')
  local last = math.min(number_in(kept, 'next'), first + MAX_JOBS)
  for n = first, last do
    local claim = entry_of(claim_entry(reader, n))
    if claim and number_in(claim, 'first') < #sizes_in(claim) then
      call('ZADD', key.staging, after_ms(GONE_MS), entry)
      return
    end
  end
  for n = first, last do strike(claim_entry(reader, n)) end
  strike(entry)
end

-- leased -> ready | parked, for one chunk of a claim that is over. Returns how many jobs, and
-- whether it was the last chunk.
local function return_chunk(entry, kept, why, to_the_back)
  local n, reader = string.match(entry, '^claim (%d+) (.*)$')
  n = tonumber(n)
  kept.over = kept.over or why
  local ids, holds = claimed_in(reader, n, number_in(kept, 'first'))
  if #ids > 0 then release_all(ids, holds, 0, to_the_back) end
  return #ids, close_chunk(entry, kept, reader, n, this.now)
end

-- -------------------------------------------------------------------- staging

-- Rows that wait to become jobs, and what is due in `staging`

local function chunk_field(attempt, number)
  return attempt .. string.format('/%d', number)
end

-- An attempt is named '<write>/<partition>.<attempt>': no chunk can have such a name.
local function attempt_name(text)
  if not string.find(name(text, 'attempt'), '/%d+%.%d+$') then refuse('INVALID', 'attempt') end
  return text
end

-- A chunk is the number of its words, then each word after its length. The words are groups of jobs
-- as in read_jobs; before each group stands the request whose parts its jobs become ('' = none).
-- Returns the groups, and how many jobs they have.
local function read_chunk(bytes)
  local function garbled() refuse('INVALID', 'chunk') end

  if #bytes < 4 then garbled() end
  local left, at, words = struct.unpack('<I4', bytes), 5, nil
  if left < 8 or left > 8 * MAX_JOBS then garbled() end
  while left > 0 do
    local n = math.min(left, 4 * MAX_JOBS)
    local found = {pcall(struct.unpack, '<' .. string.rep('I4c0', n), bytes, at)}
    if not found[1] then garbled() end
    at, found[n + 2] = found[n + 2], nil
    if words then
      for i = 2, n + 1 do words[#words + 1] = found[i] end
    else
      words = found
    end
    left = left - n
  end
  if at ~= #bytes + 1 then garbled() end
  local groups, total = read_jobs(words, 2, true)
  for _, group in ipairs(groups) do
    if group.request ~= '' then
      local facts = group.facts or {}
      if #owner_name(group.request) > MAX_REQUEST then refuse('INVALID', 'request') end
      if facts.group or facts.result_for_ms or facts.remember_for_ms then
        refuse('INVALID', 'options')
      end
    end
  end
  return groups, total
end

-- Forget the chunks of an attempt, from the last one on, within the budget. Returns the budget that
-- is left.
local function drop_attempt(entry, kept, budget)
  local attempt, chunks, fields = string.sub(entry, 9), number_in(kept, 'chunks'), {}
  local first = math.max(0, chunks - budget)
  for number = first, chunks - 1 do fields[#fields + 1] = chunk_field(attempt, number) end
  if #fields > 0 then call('HDEL', key.staged, unpack(fields)) end
  if first == 0 then
    strike(entry)
  else
    kept.chunks = first
    enter(entry, kept, this.now)
  end
  return budget - math.max(1, #fields)
end

-- A list of winners can no longer be committed: drop it, and let its attempts be forgotten.
local function disown(entry)
  for _, attempt in ipairs(entry_of(entry) or {}) do
    local kept = type(attempt) == 'string' and entry_of('attempt ' .. attempt)
    if kept and kept.of == entry then
      kept.of = nil
      enter('attempt ' .. attempt, kept, this.now)
    end
  end
  strike(entry)
end

-- Whether this write was committed, or this batch of its writer. The batches of a writer count up.
local function is_committed(write, writer, batch)
  if call('HEXISTS', key.ledger, 'commit ' .. write) == 1 then return true end
  local kept = writer ~= '' and entry_of('writer ' .. writer)
  return kept and number_in(kept, 'batch') >= batch
end

-- nothing -> ready | delayed | parked: the rows of a chunk. A request takes its rows even if it was
-- sealed after the commit; if it has ended, it is reopened. If the request is gone, or a plain job
-- has one of the numbers, the rows become plain jobs.
local function add_rows(groups, how)
  local plain, named = {}, {}
  for _, group in ipairs(groups) do
    local request, words = group.request, group.words
    local record = request ~= '' and request_of(request)
    local n = (group.last - group.first + 1) / 2
    local takes = record and record.group == 0 and not (record.outcome > 0 and record.walked > 0)
    if takes and not taken_part(request, record.total, n) then
      local payloads = {}
      for i = group.first + 1, group.last, 2 do payloads[#payloads + 1] = words[i] end
      if record.outcome > 0 then reopen(request, record) end
      append_parts(request, record, payloads, group.priority, group.due, group.facts or {})
    elseif how ~= '' and not group.made then
      named[#named + 1] = group
    else
      plain[#plain + 1] = group
    end
  end
  choose(plain)
  create_each(plain)
  if #named > 0 then update_each(named, how) end
end

-- staged -> ready | delayed | parked: the next chunks of a committed write, by default of the
-- oldest one. Takes several small chunks in one call. Returns how many rows, and whether more is
-- left. Call check_staging, check_types and check_requests first.
local function publish_some(entry)
  entry = entry or call('ZRANGE', key.staging, '-inf', '(0', 'BYSCORE', 'LIMIT', 0, 1)[1]
  local kept = entry and entry_of(entry)
  if not kept or kept.published_at then
    if entry and not kept then strike(entry) end
    return 0, false
  end
  local write, how = string.sub(entry, 8), type(kept.how) == 'string' and kept.how or ''
  if how ~= '' and type(kept.only) == 'string' then how = how .. kept.only end
  local lists, list_number = number_in(kept, 'lists'), number_in(kept, 'list')
  local place, rows, bytes, steps, list_entry, list = number_in(kept, 'place'), 0, 0, 0, nil, nil
  while list_number < lists and rows < MAX_JOBS and steps < 100 do
    if not list then
      list_entry = string.format('winners %d ', list_number) .. write
      list = entry_of(list_entry) or {}
    end
    local attempt = type(list[2 * place + 1]) == 'string' and list[2 * place + 1] or ''
    local staged = entry_of('attempt ' .. attempt) or {}
    local number, chunks = number_in(staged, 'first'), number_in(staged, 'chunks')
    if number < chunks then
      local field_name = chunk_field(attempt, number)
      bytes = bytes + call('HSTRLEN', key.staged, field_name)
      if rows > 0 and bytes > SMALL_CHUNKS then break end
      local chunk = call('HGET', key.staged, field_name)
      local sound, groups, n = pcall(read_chunk, chunk or '')
      if sound then
        if rows + n > MAX_JOBS then break end
        add_rows(groups, how)
        rows = rows + n
      end
      call('HDEL', key.staged, field_name)
      number = number + 1
    end
    if number < chunks then
      staged.first = number
      enter('attempt ' .. attempt, staged, MAX_INSTANT)
    else
      strike('attempt ' .. attempt)
      place = place + 1
      if 2 * place >= #list then
        strike(list_entry)
        list_number, place, list = list_number + 1, 0, nil
      end
    end
    steps = steps + 1
  end
  if list_number < lists then
    kept.list, kept.place = list_number, place
    call('HSET', key.ledger, entry, cmsgpack.pack(kept))
    book()
    return rows, true
  end
  enter(entry, {published_at = this.now}, after_ms(number_in(kept, 'keep_ms')))
  tell('published', {write})
  return rows, false
end

-- Forget a schedule that no call names any more. A call of an older release leaves no mark here, so
-- the last tick counts too.
local function forget_schedule(entry)
  local last = tonumber(call('HGET', key.meta, entry) or 0) or 0
  if last <= this.now and last > this.now - GONE_MS then
    call('ZADD', key.staging, last + GONE_MS, entry)
    return
  end
  call('HDEL', key.meta, entry)
  strike(entry)
end

-- Process what is due in `staging`. Publish a committed write if fewer jobs are ready than wanted.
-- Drop attempts and lists that were not committed in time. Give back claims that lapsed, unless the
-- grace after a silence protects them. Forget old commits, and readers, writers and schedules that
-- are gone. Returns how many entries.
local function tend_staging(wanted, to_the_back)
  local publishing = wanted and call('ZCARD', key.ready) < wanted
  if publishing then publish_some() end
  local due = call('ZRANGE', key.staging, 0, this.now, 'BYSCORE', 'LIMIT', 0, MAX_CHUNKS,
    'WITHSCORES')
  local budget, seen = MAX_CHUNKS, #due / 2
  for i = 1, #due, 2 do
    local entry, at = due[i], tonumber(due[i + 1])
    local kept, kind = entry_of(entry), string.match(entry, '^%a+')
    if budget <= 0 then
      break
    elseif not kept or kind == 'commit' or kind == 'writer' then
      strike(entry)
    elseif kind == 'attempt' then
      budget = drop_attempt(entry, kept, budget)
    elseif kind == 'winners' then
      disown(entry)
    elseif kind == 'tick' then
      forget_schedule(entry)
    elseif kind == 'reader' then
      budget = 0
      forget_reader(entry, kept)
    elseif kind == 'claim' and number_in(kept, 'first') >= #sizes_in(kept) then
      strike(entry)
    elseif kind == 'claim' then
      if kept.over or at <= this.lapsed_by then
        budget = 0  -- One chunk is as much as a call moves.
        return_chunk(entry, kept, 'it lapsed', to_the_back)
      else
        seen = seen - 1
      end
    else
      call('ZADD', key.staging, MAX_INSTANT, entry)  -- A newer release may know what it is.
    end
  end
  this.staging = nil
  see_to_it(tonumber(call('ZRANGE', key.staging, 0, 0, 'WITHSCORES')[2]) or MAX_INSTANT)
  this.unpublished = publishing and this.staging < 0
  return seen
end
