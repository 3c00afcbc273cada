-- What every transition shares: the names of the keys, the clock, the caller's last
-- answer, and the few functions that move a job from one set to another.
--
-- A script is a header line, this file, the parts that it needs and one <transition>.lua,
-- sent as one text.
-- A changing transition reads:
--
--     local again = begin()              -- clock, layout, "have I answered this?"
--     if again then return again end
--     ... check everything, then write ...
--     return finish(answer)              -- remember the answer, wake a sleeper, tell
--
-- Check, then write: Lua does not roll back, so every refusal comes before the first
-- write, and no command that can fail follows one. A command fails on a key of another
-- type, so each key is read once before the first write.
--
-- All this is made anew for every call: a function that is not needed costs nevertheless.
-- So what only some transitions need stands in parts/ (calls.py says who needs what), and
-- few locals are captured (hence key, MAX, this).

local call = redis.call

local K = KEYS
local key = {
  ready = K[1], delayed = K[2], leased = K[3], holds = K[4], parked = K[5], turns = K[6],
  failed = K[7], ended = K[8], jobs = K[9], facts = K[10], next = K[11], results = K[12],
  requests = K[13], workers = K[14], calls = K[15], meta = K[16], wake = K[17], staged = K[18],
  staging = K[19], claims = K[20], ledger = K[21], events = K[22],
}

local MAX = {
  jobs = 1000,                -- in one call
  bytes = 8 * 1024 * 1024,    -- in one call
  name = 512,                 -- bytes of a name, id or token
  lapses = 3,                 -- unless the job says otherwise
  priority = 99,
  instant = 2 ^ 53 - 1,       -- the latest; as a duration: for ever
}

-- What is known of this call. The fields of `meta` are written with the answer.
local this = {
  now = 0, at = '', layout = false, seen = false, grace = 0, before = false, paused = false,
  largest = 0, caller = '', number = 0, new_caller = false, has_facts = false, asleep = false,
  grantable = false, meta = {}, events = {},
}

local LAYOUT = 1              -- of the keys and what is in them
local SILENCE_MS = 5000       -- nobody called for longer: holders get as long again
local CALLER_MS = 600000      -- a caller silent for longer is forgotten
local STEP = 2 ^ 46           -- ranks of one priority

-- ---------------------------------------------------------------- refusals

-- No value from outside goes into a refusal: it could forge a reply.
local function refuse(word, fact)
  error({err = word .. ' ' .. fact})
end

-- tonumber takes 'nan', 'inf', '0x10' and ' 7 '. A number here is plain digits.
local function whole(text, least, most, what)
  local n = text and #text <= 16 and string.find(text, '^%d+$') and tonumber(text)
  if not n or n < least or n > most then refuse('INVALID', what) end
  return n
end

local function name(text, what)
  if not text or #text < 1 or #text > MAX.name then refuse('INVALID', what) end
  return text
end

-- Fails, before anything was written, when one of the keys that most transitions write is
-- not of the type it should have.
local function check_types()
  call('ZCARD', key.ready)
  call('ZCARD', key.leased)
  call('HLEN', key.holds)
  call('HLEN', key.jobs)
  this.has_facts = call('HLEN', key.facts) > 0
  this.asleep = call('LLEN', key.wake) == 0
end

-- ------------------------------------------------------------ begin and end

local function look()
  if ARGV[1] == '' then
    local time = call('TIME')
    this.now = time[1] * 1000 + math.floor(time[2] / 1000)
  else
    this.now = whole(ARGV[1], 0, MAX.instant, 'time')
  end
  local found = call('HMGET', key.meta, 'layout', 'seen', 'grace', 'paused', 'largest', 'sequence',
    'before')
  this.layout, this.seen = tonumber(found[1]), tonumber(found[2])
  this.grace = tonumber(found[3]) or 0
  if this.layout and this.layout > LAYOUT then refuse('LAYOUT', tostring(this.layout)) end
  if found[6] and not string.find(found[6], '^%d+$') then refuse('BROKEN', 'sequence') end
  this.paused, this.largest, this.before = found[4], tonumber(found[5]) or 0, tonumber(found[7])
end

-- Returns the answer given before when this very call was made before.
local function begin()
  look()
  local now, seen = this.now, this.seen
  this.at = string.format('%d', now)  -- not `..`, which loses digits
  this.caller, this.number = name(ARGV[2], 'caller'), whole(ARGV[3], 1, MAX.instant, 'number')
  if not this.layout then this.meta.layout = LAYOUT end
  -- A clock that was set back must not stop reclaim until it is there again.
  if this.grace > now + SILENCE_MS then this.grace = 0 end
  -- Silence of everybody is not a lapse: let the living extend before we reclaim.
  if seen and now - seen > SILENCE_MS then
    this.grace, this.before = now + SILENCE_MS, seen
    this.meta.grace, this.meta.before = this.grace, seen
  end
  -- Written once a second at most, so silence is known to the second.
  if not seen or now - seen >= 1000 or now < seen then this.meta.seen = now end

  local last = call('HGET', key.calls, this.caller)
  this.new_caller = not last
  if last then
    local number, start = string.match(last, '^(%d+) %d+ ()')
    number = tonumber(number or 0)
    if number > this.number then refuse('STALE', 'a later call of this caller was answered') end
    if number == this.number then return cmsgpack.unpack(string.sub(last, start)) end
  end
  -- A command that the user's ACL denies would fail between two writes. Asked for a new
  -- caller and once a second, as it is slow.
  if this.new_caller or this.meta.seen then
    for _, command in ipairs({
      {'ZADD', key.ready, 0, ''}, {'ZREM', key.ready, ''}, {'ZRANGE', key.ready, 0, 0},
      {'ZCARD', key.ready}, {'ZSCORE', key.ready, ''}, {'ZPOPMIN', key.ready},
      {'ZCOUNT', key.ready, 0, 0},
      {'HSET', key.jobs, '', ''}, {'HDEL', key.jobs, ''}, {'HMGET', key.jobs, ''},
      {'HGET', key.jobs, ''}, {'HEXISTS', key.jobs, ''}, {'HLEN', key.jobs},
      {'HSTRLEN', key.jobs, ''}, {'HINCRBY', key.meta, '', 1}, {'HRANDFIELD', key.calls, 1},
      {'LLEN', key.wake}, {'LPUSH', key.wake, ''}, {'UNLINK', key.wake},
    }) do
      if not redis.acl_check_cmd(unpack(command)) then refuse('NOPERM', command[1]) end
    end
  end
end

-- Remember the answer, wake a sleeper, tell whoever listens. `reply` is what goes out
-- when it is more than is remembered.
local function finish(answer, reply)
  local now, number = this.now, this.number
  call('HSET', key.calls, this.caller, ARGV[3] .. ' ' .. this.at .. ' ' .. cmsgpack.pack(answer))
  if next(this.meta) then
    local fields = {}
    for field, value in pairs(this.meta) do
      fields[#fields + 1] = field
      fields[#fields + 1] = value
    end
    call('HSET', key.meta, unpack(fields))
  end
  -- Callers are forgotten by those who come after: a new one, and an old one now and then,
  -- looks at four, so the living outnumber the forgotten however short they live.
  if this.new_caller or number % 16 == 0 then
    -- Right after a silence it may be the clock that jumped, and not they who were silent.
    local known_until = now < this.grace and this.before or now
    for _, other in ipairs(call('HRANDFIELD', key.calls, 4)) do
      local seen = string.match(call('HGET', key.calls, other), '^%d+ (%d+) ')
      if known_until - (seen or 0) > CALLER_MS then call('HDEL', key.calls, other) end
    end
  end
  if this.grantable and this.asleep and not this.paused then call('LPUSH', key.wake, '1') end
  if #this.events > 0 then redis.pcall('PUBLISH', key.events, cmsgpack.pack(this.events)) end
  return reply or answer
end

-- Count what happened and put it into the one event of this call. What was added is not
-- counted: it is what is left of `sequence` without `promoted` and `requeued`.
local function tell(kind, ids)
  if #ids == 0 then return end
  if kind ~= 'added' then redis.pcall('HINCRBY', key.meta, kind, #ids) end
  this.events[#this.events + 1] = {kind, #ids, #ids <= 100 and ids or {}}
end

-- ------------------------------------------------------------------- values

local function rank_of(priority, sequence)
  return (MAX.priority - priority) * STEP + sequence
end

-- The number before the first of n new sequence numbers.
local function sequence(n)
  return call('HINCRBY', key.meta, 'sequence', n) - n
end

-- What is kept about a job beside its payload: msgpack, full words, only what differs from
-- the defaults; -1 means no limit. The first nine the client may set. A fact of the wrong
-- kind is passed over, as it must not stop the queue; one that we do not know is kept, as
-- a newer release may have written it. Returns the facts, and whether all are sound.
local function read_facts(packed)
  if not packed then return {}, true end
  local ok, facts = pcall(cmsgpack.unpack, packed)
  if not ok or type(facts) ~= 'table' then return {}, false end
  local kinds = {
    handler = 'string', timeout_ms = 'number', max_failures = 'number', max_lapses = 'number',
    min_backoff_ms = 'number', max_backoff_ms = 'number', result_for_ms = 'number',
    remember_for_ms = 'number', keep = 'boolean',
    priority = 'number', failures = 'number', lapses = 'number', error = 'string',
    failed_at = 'number', outcome = 'string', ended_at = 'number', taken_until = 'number',
  }
  local sound = true
  for fact, value in pairs(facts) do
    local kind = type(value)
    if kind ~= (kinds[fact] or kind)
      or kind == 'number' and not (value >= -1 and value <= MAX.instant and value % 1 == 0)
      or fact == 'priority' and not (value >= 0 and value <= MAX.priority) then
      facts[fact] = nil
      sound = false
    end
  end
  return facts, sound
end

local function facts_of(id)
  return read_facts(call('HGET', key.facts, id))
end

local function set_facts(id, facts)
  if next(facts) then
    call('HSET', key.facts, id, cmsgpack.pack(facts))
    this.has_facts = true
  else
    call('HDEL', key.facts, id)
  end
end

local function after_ms(duration)
  return math.min(this.now + duration, MAX.instant)
end
