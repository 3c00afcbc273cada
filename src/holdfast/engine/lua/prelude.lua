-- What every transition shares: the clock, the caller's last answer, refusals, and what is
-- known about a job.
--
-- A script is a header line, the functions that it reaches of this file and of shared/, and
-- one <transition>.lua, sent as one text (scripts.py). `key.<name>` and words in capitals
-- are filled in there. A changing transition reads:
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
-- All this is made anew for every call: a table that grows, or a function inside a loop,
-- costs more than most commands.

local call = redis.call
local this  -- what is known of this call, see look()

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
  if not text or #text < 1 or #text > MAX_NAME then refuse('INVALID', what) end
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
  this.has_next = call('HLEN', key.next) > 0
  this.asleep = call('LLEN', key.wake) == 0
  if this.has_facts or this.has_next then
    call('ZCARD', key.delayed)
    call('ZCARD', key.failed)
    call('ZCARD', key.ended)
    call('HLEN', key.results)
    this.has_requests = call('HLEN', key.requests) > 0
    -- A successor may be of a group that is not there yet.
    if this.has_requests or this.has_next then
      call('ZCARD', key.parked)
      call('ZCARD', key.turns)
      call('ZCARD', key.terms)
    end
  end
end

-- ------------------------------------------------------------ begin and end

local function look()
  local now
  if ARGV[1] == '' then
    local time = call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  else
    now = whole(ARGV[1], 0, MAX_INSTANT, 'time')
  end
  local found = call('HMGET', key.meta, 'layout', 'seen', 'grace', 'before', 'paused', 'largest',
    'sequence', 'staging')
  local layout, sequence = found[1], found[7]
  -- Only what we wrote ourselves is ours to change.
  if layout and layout ~= 'OUR_LAYOUT' then
    local newer = #layout <= 9 and string.find(layout, '^[1-9]%d*$')
    refuse('LAYOUT', newer and layout or 'unknown')
  end
  if sequence and not string.find(sequence, '^%d+$') then refuse('BROKEN', 'sequence') end
  this = {
    now = now, at = '', seen = tonumber(found[2]), grace = tonumber(found[3]) or 0,
    before = tonumber(found[4]), lapsed_by = 0,
    paused = found[5], largest = tonumber(found[6]) or 0,
    new_caller = false, has_facts = false, has_next = false, has_requests = false,
    asleep = false, grantable = false,
    meta = layout and {} or {'layout', OUR_LAYOUT}, told = {},
    staging = found[8] and tonumber(found[8]) or nil,
  }
end

-- Write a field of `meta`, together with the answer.
local function note(field, value)
  local meta = this.meta
  meta[#meta + 1], meta[#meta + 2] = field, value
end

-- Returns the answer given before when this very call was made before.
local function begin()
  look()
  local now, seen = this.now, this.seen
  local caller, number = name(ARGV[2], 'caller'), whole(ARGV[3], 1, MAX_INSTANT, 'number')
  this.at = string.format('%d', now)  -- not `..`, which loses digits
  -- A clock that was set back must not stop reclaim until it is there again.
  if this.grace > now + SILENCE_MS then this.grace = 0 end
  -- Silence of everybody is not a lapse: let the living extend before we reclaim.
  if seen and now - seen > SILENCE_MS then
    this.grace, this.before = now + SILENCE_MS, seen
    note('grace', this.grace)
    note('before', seen)
  end
  -- During the grace a lease is protected if it had not lapsed at the last call before the
  -- silence. A lease that had lapsed by then is not: who calls seldom must reclaim too. As `seen`
  -- may be a second older than that call, some leases are protected that need not be.
  this.lapsed_by = now < this.grace and math.min(now, this.before or 0) or now
  -- Written once a second at most, so silence is known to the second.
  local a_second_later = not seen or now - seen >= 1000 or now < seen
  if a_second_later then note('seen', now) end

  local last = call('HGET', key.calls, caller)
  if last then
    local answered, start = string.match(last, '^(%d+) %d+ ()')
    answered = tonumber(answered or 0)
    if answered > number then refuse('STALE', 'a later call of this caller was answered') end
    if answered == number then
      call('HSET', key.calls, caller, last)  -- so that who waits for replicas waits for this answer
      return cmsgpack.unpack(string.sub(last, start))
    end
  else
    this.new_caller = true
  end
  -- A command that the user's ACL denies would fail between two writes. Asked for a new
  -- caller and once a second, as it is slow.
  if not last or a_second_later then
    for _, command in ipairs({
      {'ZADD', key.ready, 0, ''}, {'ZREM', key.ready, ''}, {'ZRANGE', key.ready, 0, 0},
      {'ZCARD', key.ready}, {'ZSCORE', key.ready, ''}, {'ZMSCORE', key.ready, ''},
      {'ZPOPMIN', key.ready}, {'ZCOUNT', key.ready, 0, 0}, {'ZLEXCOUNT', key.parked, '-', '+'},
      {'HSET', key.jobs, '', ''}, {'HDEL', key.jobs, ''}, {'HMGET', key.jobs, ''},
      {'HGET', key.jobs, ''}, {'HEXISTS', key.jobs, ''}, {'HLEN', key.jobs},
      {'HSTRLEN', key.jobs, ''}, {'HINCRBY', key.meta, '', 1}, {'HRANDFIELD', key.calls, 1},
      {'LLEN', key.wake}, {'LPUSH', key.wake, ''}, {'UNLINK', key.wake},
    }) do
      if not redis.acl_check_cmd(unpack(command)) then refuse('NOPERM', command[1]) end
    end
  end
end

-- Callers are forgotten by those who come after: a new one, and an old one now and then,
-- looks at four, so the living outnumber the forgotten however short they live.
local function forget_callers()
  -- Right after a silence it may be the clock that jumped, and not they who were silent.
  local known_until = this.now < this.grace and this.before or this.now
  for _, other in ipairs(call('HRANDFIELD', key.calls, 4)) do
    local seen = string.match(call('HGET', key.calls, other), '^%d+ (%d+) ')
    if known_until - (seen or 0) > CALLER_MS then call('HDEL', key.calls, other) end
  end
end

-- Put what happened into the one event of this call; the list is its own from then on. What was
-- added is not counted: it is what is left of `sequence` without `promoted` and `requeued`.
local function tell(kind, ids)
  if #ids == 0 then return end
  local told = this.told
  for i = 1, #told do
    local event = told[i]
    if event.kind == kind then
      for j = 1, #ids do event.ids[#event.ids + 1] = ids[j] end
      return
    end
  end
  told[#told + 1] = {kind = kind, ids = ids}
end

-- Remember the answer, count and tell what happened, wake a sleeper. `reply` is what goes
-- out when it is more than is remembered.
local function finish(answer, reply)
  call('HSET', key.calls, ARGV[2], ARGV[3] .. ' ' .. this.at .. ' ' .. cmsgpack.pack(answer))
  if #this.meta > 0 then call('HSET', key.meta, unpack(this.meta)) end
  if this.new_caller or ARGV[3] % 16 == 0 then forget_callers() end
  if this.grantable and this.asleep and not this.paused then call('LPUSH', key.wake, '1') end
  local events = {}
  for i, event in ipairs(this.told) do
    local kind, ids, n = event.kind, event.ids, #event.ids
    if n > 0 and kind ~= 'added' then redis.pcall('HINCRBY', key.meta, kind, n) end
    events[i] = {kind, n, n <= 100 and ids or {}}
  end
  if #events > 0 then redis.pcall('PUBLISH', key.events, cmsgpack.pack(events)) end
  return reply or answer
end

-- Something has changed that nobody is told: see stamp().
local function book()
  if not this.booked then redis.pcall('HINCRBY', key.meta, 'booked', 1) end
  this.booked = true
end

-- Whatever changes a queue changes this.
local function stamp()
  local counted = call('HMGET', key.meta, 'sequence', 'leased', 'completed', 'released', 'promoted',
    'reclaimed', 'failed', 'pruned', 'retried', 'updated', 'cancelling', 'cancelled', 'revived',
    'result', 'opened', 'sealed', 'changed', 'ended', 'forgotten', 'booked')
  for i = 1, #counted do counted[i] = counted[i] or '' end
  return table.concat(counted, ' ')
end

-- ------------------------------------------------------------------- values

local function rank_of(priority, sequence)
  return (MAX_PRIORITY - priority) * RANKS + sequence
end

-- The number before the first of n new sequence numbers.
local function take_numbers(n)
  return call('HINCRBY', key.meta, 'sequence', n) - n
end

-- The number that a record has under a name; 0 where somebody else wrote it.
local function number_in(kept, field_name)
  local number = kept[field_name]
  local sound = type(number) == 'number' and number >= 0 and number % 1 == 0
  return sound and number <= MAX_INSTANT and number or 0
end

-- What is kept about a job beside its payload: msgpack, full words, only what differs from
-- the defaults; -1 means no limit. The first eleven the client may set. A fact of the wrong
-- kind is passed over, as it must not stop the queue; one that we do not know is kept, as
-- a newer release may have written it. Returns the facts, and whether all are sound.
local function read_facts(packed)
  if not packed then return {}, true end
  local ok, facts = pcall(cmsgpack.unpack, packed)
  if not ok or type(facts) ~= 'table' then return {}, false end
  this.kinds = this.kinds or {
    handler = 'string', timeout_ms = 'number', max_failures = 'number', max_lapses = 'number',
    min_backoff_ms = 'number', max_backoff_ms = 'number', result_for_ms = 'number',
    remember_for_ms = 'number', keep = 'boolean', group = 'string', group_limit = 'number',
    request = 'string', place = 'number',
    priority = 'number', number = 'number', failures = 'number', lapses = 'number',
    error = 'string', raised = 'string', cancelled = 'boolean', failed_at = 'number',
    handlings = 'number', max_handlings = 'number',
    outcome = 'string', ended_at = 'number', taken_until = 'number',
  }
  local kinds, sound = this.kinds, true
  for fact, value in pairs(facts) do
    local kind = type(value)
    if kind ~= (kinds[fact] or kind)
      or kind == 'number' and not (value >= -1 and value <= MAX_INSTANT and value % 1 == 0)
      or fact == 'priority' and not (value >= 0 and value <= MAX_PRIORITY) then
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
  return math.min(this.now + duration, MAX_INSTANT)
end
