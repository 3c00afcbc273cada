-- claiming: batches of leases that a reader holds together. After check_staging.
--
-- The jobs of a claim are leased under one token and do not lapse one by one: the claim has a time
-- in `staging`. Its chunks stand in `claims` as '<n>/<number> <reader>', each a msgpack list of
-- ids.

-- The entry of a claim, its token, and the field of one of its chunks.
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

-- What is kept about a reader, for one who presents its epoch.
local function reader_of(reader, epoch)
  local kept = entry_of('reader ' .. reader)
  if not kept or number_in(kept, 'epoch') ~= epoch then refuse('FENCED', 'a newer reader') end
  return kept
end

-- Is this the hold of a claim that is not there, or that has nothing any more?
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

-- The ids of the jobs of a chunk that still are the claim's, and their holds; of how many.
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

-- One chunk of a claim is done with. Returns whether all are: then nothing of it stays, or that
-- it is over.
local function close_chunk(entry, kept, reader, n, at)
  local first = number_in(kept, 'first')
  call('HDEL', key.claims, claim_field(reader, n, first))
  kept.first = first + 1
  if kept.first < #sizes_in(kept) then
    enter(entry, kept, at)
    return false
  elseif kept.over and kept.sealed then
    enter(entry, kept, after_ms(GONE_MS))  -- Who asks for it again shall learn why it is gone.
  else
    strike(entry)
  end
  return true
end

-- A reader that is gone, and what is known of its claims; not while one of them is open.
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
-- whether that was the last.
local function return_chunk(entry, kept, why, to_the_back)
  local n, reader = string.match(entry, '^claim (%d+) (.*)$')
  n = tonumber(n)
  kept.over = kept.over or why
  local ids, holds = claimed_in(reader, n, number_in(kept, 'first'))
  if #ids > 0 then release_all(ids, holds, 0, to_the_back) end
  return #ids, close_chunk(entry, kept, reader, n, this.now)
end
