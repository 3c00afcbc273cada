-- claiming: batches of leases that a reader holds together. Call check_staging first.
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
