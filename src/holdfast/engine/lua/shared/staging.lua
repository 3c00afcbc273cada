-- staging: rows that wait to become jobs, and what is due in `staging`

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
