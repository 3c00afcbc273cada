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
