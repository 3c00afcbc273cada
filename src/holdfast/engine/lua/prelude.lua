-- Code that every transition shares: the clock, the caller's last answer, refusals, and the facts
-- of a job.
--
-- The files in this folder are one library, in the order that library.py has them, below one line
-- that sets the words in capitals. The server makes its functions once, when it is loaded. A
-- transition is a function that the server calls by name. One that changes something looks so:
--
--     local again = begin()              -- clock, layout, "have I answered this call before?"
--     if again then return again end
--     ... check everything, then write ...
--     return finish(answer)              -- remember the answer, wake a sleeper, publish events
--
-- Check, then write: Lua does not roll back, so every refusal comes before the first write, and
-- no command that can fail follows a write. A command fails on a key of the wrong type, so each
-- key is read once before the first write; but the key of the first write needs no look before it.
--
-- A table that grows, or a function inside a loop, costs more than most commands.

local call             -- redis.call, which is not there yet while the library is loaded
local transition = {}  -- by name
local key = {}         -- the keys of the queue, by the names in keys.py
local args             -- the arguments of this call
local this             -- the state of this call, see look()

local function receive(keys, arguments)
  key.ready, key.delayed, key.leased, key.holds, key.parked, key.turns, key.failed, key.ended,
    key.jobs, key.facts, key.next, key.results, key.requests, key.workers, key.calls, key.meta,
    key.wake, key.staged, key.staging, key.claims, key.ledger, key.events, key.terms = unpack(keys)
  args, call = arguments, redis.call
end

-- Let clients call a transition by this name.
local function serve(function_name, its_transition, flags)
  redis.register_function({
    function_name = function_name,
    callback = function(keys, arguments)
      receive(keys, arguments)
      return its_transition()
    end,
    flags = flags,
  })
end

-- The last argument of a script names the transition.
local function run_as_script()
  local arguments = ARGV
  local its_transition = transition[table.remove(arguments)]
  receive(KEYS, arguments)
  return its_transition()
end

-- ---------------------------------------------------------------- refusals

-- No value from outside goes into a refusal: it could forge a reply.
local function refuse(word, fact)
  error({err = word .. ' ' .. fact})
end

-- tonumber takes 'nan', 'inf', '0x10' and ' 7 '. A number here is plain digits.
local function new_number(text, least, most, what)
  local n = text and #text <= 16 and not string.find(text, '%D') and tonumber(text)
  if not n or n < least or n > most then refuse('INVALID', what) end
  return n
end

-- Numbers by their text. Most calls have the same few counts and durations, and to look one up is
-- cheaper than to read it. The library keeps up to a thousand of them between calls.
local known_numbers, unknown = {}, 1000

local function whole(text, least, most, what)
  local n = known_numbers[text]
  if n and n >= least and n <= most then return n end
  n = new_number(text, least, most, what)
  if #text < 8 and unknown > 0 then known_numbers[text], unknown = n, unknown - 1 end
  return n
end

local function name(text, what)
  if not text or #text < 1 or #text > MAX_NAME then refuse('INVALID', what) end
  return text
end

-- Fails, before the first write, if a key that most transitions write has the wrong type. first:
-- what the call does first, if that saves some of the looks:
--     'settle'  it has read `holds`, and writes `leased` first
--     'end'     so too, and then it only ends the jobs
--     'grant'   it writes `ready` first, and ends no job that has not been one of an owner
local function check_types(first)
  if first ~= 'settle' and first ~= 'end' then
    call('ZCARD', key.leased)
    call('HLEN', key.holds)
  end
  call('HLEN', key.jobs)
  if call('HLEN', key.facts) > 0 then this.has_facts = true end
  local others = this.has_facts
  if (first ~= 'grant' or others) and call('HLEN', key.next) > 0 then
    this.has_next, others = true, true
  end
  if others or first ~= 'grant' and first ~= 'end' then call('ZCARD', key.ready) end
  if others or first ~= 'end' then this.asleep = call('LLEN', key.wake) == 0 end
  if others then
    call('ZCARD', key.delayed)
    call('ZCARD', key.failed)
    call('ZCARD', key.ended)
    call('HLEN', key.results)
    this.has_requests = call('HLEN', key.requests) > 0
    -- A successor may belong to a group that does not exist yet.
    if this.has_requests or this.has_next then
      call('ZCARD', key.parked)
      call('ZCARD', key.turns)
      call('ZCARD', key.terms)
    end
  end
end

-- ------------------------------------------------------------ begin and end

local LAYOUT = OUR_LAYOUT .. ''

-- The state of a call as far as most calls do not set it. A table of more than sixteen fields costs
-- twice as much.
local AT_FIRST = {__index = {
  paused = false, grace = 0, largest = 0,
  new_caller = false, has_facts = false, has_next = false, has_requests = false,
}}

local function look()
  local now
  if args[1] == '' then
    local time = call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  else
    now = new_number(args[1], 0, MAX_INSTANT, 'time')
  end
  local found = call('HMGET', key.meta, 'layout', 'seen', 'grace', 'before', 'paused', 'largest',
    'sequence', 'staging', 'tend_at')
  local layout, sequence = found[1], found[7]
  -- Change only a queue that has our own layout.
  if layout and layout ~= LAYOUT then
    local newer = #layout <= 9 and string.find(layout, '^[1-9]%d*$')
    refuse('LAYOUT', newer and layout or 'unknown')
  end
  if sequence and not string.find(sequence, '^%d+$') then refuse('BROKEN', 'sequence') end
  local tend_at = found[9] and tonumber(found[9]) or nil
  this = setmetatable({
    now = now, at = '', seen = tonumber(found[2]), lapsed_by = 0,
    meta = layout and {} or {'layout', OUR_LAYOUT}, told = {},
    asleep = false, grantable = false, tend_at = tend_at, tended = tend_at,
  }, AT_FIRST)
  if found[3] then this.grace, this.before = tonumber(found[3]) or 0, tonumber(found[4]) end
  if found[5] then this.paused = found[5] end
  if found[6] then this.largest = tonumber(found[6]) or 0 end
  if found[8] then this.staging = tonumber(found[8]) end
end

-- Set a field of `meta`; finish() writes it.
local function note(field, value)
  local meta = this.meta
  meta[#meta + 1], meta[#meta + 2] = field, value
end

-- A job, a lease, an ending or a request gets this time in delayed, leased, ended or terms. `meta`
-- has the earliest of all these times, or an earlier one, as `tend_at`: see overdue.
local function tend_by(at)
  if at < (this.tend_at or 0) then this.tend_at = at end
end

-- Returns the remembered answer if this call is a repetition, else nil.
local function begin()
  look()
  local now, seen = this.now, this.seen
  local caller, number = name(args[2], 'caller'), new_number(args[3], 1, MAX_INSTANT, 'number')
  this.at = string.format('%d', now)  -- not `..`, which loses digits
  -- If the clock was set back, an old grace must not stop reclaim until the clock has caught up.
  if this.grace > now + SILENCE_MS then this.grace = 0 end
  -- After a silence of all clients (restart, failover, clock step), leases do not lapse at once:
  -- their holders may extend them first.
  if seen and now - seen > SILENCE_MS then
    this.grace, this.before = now + SILENCE_MS, seen
    note('grace', this.grace)
    note('before', seen)
  end
  -- During the grace, a lease is protected if it had not lapsed by the last call before the
  -- silence. A lease that had lapsed by then is not protected, because clients that call seldom
  -- must reclaim too. `seen` may be up to a second older than that call, so some leases are
  -- protected without need.
  this.lapsed_by = now < this.grace and math.min(now, this.before or 0) or now
  -- Written at most once a second, so a silence is measured to the second.
  local a_second_later = not seen or now - seen >= 1000 or now < seen
  if a_second_later then note('seen', now) end

  local last = call('HGET', key.calls, caller)
  if last then
    local answered, start = string.match(last, '^(%d+) %d+ ()')
    answered = tonumber(answered or 0)
    if answered > number then refuse('STALE', 'a later call of this caller was answered') end
    if answered == number then
      call('HSET', key.calls, caller, last)  -- a write, so that WAIT covers this answer
      return cmsgpack.unpack(string.sub(last, start))
    end
  else
    this.new_caller = true
  end
  -- A command that the user's ACL denies would fail between two writes. The check is slow, so it is
  -- made for a new caller and once a second.
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

-- Forget callers that were silent for CALLER_MS. Each new caller, and each known one on every 16th
-- call, looks at four random entries, so `calls` stays small even if callers live only briefly.
local function forget_callers()
  -- Right after a silence the clock may have jumped, so measure from the last call before it.
  local known_until = this.now < this.grace and this.before or this.now
  for _, other in ipairs(call('HRANDFIELD', key.calls, 4)) do
    local seen = string.match(call('HGET', key.calls, other), '^%d+ (%d+) ')
    if known_until - (seen or 0) > CALLER_MS then call('HDEL', key.calls, other) end
  end
end

-- Add ids to the one message that this call publishes. tell() keeps the list: the caller must not
-- change it afterwards. `added` has no counter: it is `sequence` less `promoted` and `requeued`.
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

-- Remember the answer, count and publish the events, wake a sleeper. reply: what the caller gets,
-- if that is more than the answer to remember.
local function finish(answer, reply)
  call('HSET', key.calls, args[2], args[3] .. ' ' .. this.at .. ' ' .. cmsgpack.pack(answer))
  if this.tend_at ~= this.tended then note('tend_at', this.tend_at) end
  if #this.meta > 0 then call('HSET', key.meta, unpack(this.meta)) end
  if this.new_caller or args[3] % 16 == 0 then forget_callers() end
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

-- Record a change that has no event, so that stamp() changes.
local function book()
  if not this.booked then redis.pcall('HINCRBY', key.meta, 'booked', 1) end
  this.booked = true
end

-- Returns a text that changes with every change of the queue.
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

-- Take n sequence numbers. Returns the number before the first.
local function take_numbers(n)
  return call('HINCRBY', key.meta, 'sequence', n) - n
end

-- A number in a record; 0 if it is not valid, as another program may have written it.
local function number_in(kept, field_name)
  local number = kept[field_name]
  local sound = type(number) == 'number' and number >= 0 and number % 1 == 0
  return sound and number <= MAX_INSTANT and number or 0
end

local KIND_OF_FACT = {
  handler = 'string', timeout_ms = 'number', max_failures = 'number', max_lapses = 'number',
  min_backoff_ms = 'number', max_backoff_ms = 'number', result_for_ms = 'number',
  remember_for_ms = 'number', keep = 'boolean', group = 'string', group_limit = 'number',
  request = 'string', place = 'number',
  priority = 'number', number = 'number', failures = 'number', lapses = 'number',
  error = 'string', raised = 'string', cancelled = 'boolean', failed_at = 'number',
  handlings = 'number', max_handlings = 'number',
  outcome = 'string', ended_at = 'number', taken_until = 'number',
}

-- Facts are what is stored about a job beside its payload: msgpack with full words as keys, and
-- only what differs from the defaults; -1 means no limit. The client may set the first eleven. A
-- fact of the wrong kind is ignored, because it must not stop the queue. An unknown fact is kept,
-- because a newer release may have written it. Returns the facts, and whether all of them are
-- valid.
local function read_facts(packed)
  if not packed then return {}, true end
  local ok, facts = pcall(cmsgpack.unpack, packed)
  if not ok or type(facts) ~= 'table' then return {}, false end
  local sound = true
  for fact, value in pairs(facts) do
    local kind = type(value)
    if kind ~= (KIND_OF_FACT[fact] or kind)
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

-- ------------------------------------------------------------------- settling

-- The settles in a call, and which of them present the last token given out

-- Settles stand in ARGV as: number of groups, then per group token, n, n ids. Returns groups
-- {token, first, last} (places in ARGV), and the place after them.
local function read_settles(at)
  local groups, total = {}, 0
  local n_groups = whole(args[at], 0, MAX_JOBS, 'settles')
  at = at + 1
  for i = 1, n_groups do
    local token, n = name(args[at], 'token'), whole(args[at + 1], 1, MAX_JOBS, 'settles')
    local first, last = at + 2, at + 1 + n
    total = total + n
    if string.find(token, '%s') then refuse('INVALID', 'token') end
    if total > MAX_JOBS or not args[last] then refuse('INVALID', 'settles') end
    for place = first, last do name(args[place], 'id') end
    groups[i] = {token = token, first = first, last = last}
    at = last + 1
  end
  return groups, at
end

-- Results stand in ARGV as: n, then n times number of the settle, result. Returns them by number,
-- and the place after them.
local function read_results(at)
  local results, bytes = {}, 0
  local n = whole(args[at], 0, MAX_JOBS, 'results')
  for i = at + 1, at + 2 * n, 2 do
    local result = args[i + 1]
    if not result then refuse('INVALID', 'results') end
    results[whole(args[i], 1, MAX_JOBS, 'results')] = result
    bytes = bytes + #result
  end
  if bytes > MAX_BYTES then refuse('INVALID', 'too much for one call') end
  return results, at + 1 + 2 * n
end

-- Keep the settles that present the last token given out, each id once. Returns ids, their holds,
-- which settle each id came from, and '1' or '0' per settle.
local function held(groups, must_be_leased)
  local ids, holds, numbers, flags, taken = {}, {}, {}, {}, {}
  local n, total = 0, 0
  for _, group in ipairs(groups) do
    local found = call('HMGET', key.holds, unpack(args, group.first, group.last))
    local leased = must_be_leased
      and call('ZMSCORE', key.leased, unpack(args, group.first, group.last))
    local presented, before = group.token .. ' ', group.first - 1
    local length = #presented
    for i = 1, #found do
      local id, hold = args[before + i], found[i]
      total = total + 1
      if hold and string.sub(hold, 1, length) == presented and not taken[id]
        and not (leased and not leased[i]) then
        taken[id] = true
        n = n + 1
        ids[n], holds[n], numbers[n], flags[total] = id, hold, total, '1'
      else
        flags[total] = '0'
      end
    end
  end
  return ids, holds, numbers, flags
end

-- '+ms' is a delay, and nil if that is 0; 'ms' is a time, which may be past. Jobs that are overdue
-- when they are added wait in `delayed` too, so that the next lease promotes them in due order.
local function read_due(text)
  local sign, digits = string.match(text, '^(%+?)(.*)$')
  local at = whole(digits, 0, MAX_INSTANT, 'due')
  if sign == '+' then return at > 0 and after_ms(at) or nil end
  return at
end

-- How often a failure handler may try: '' = as before (returns nil), '-' = any number of times.
local function read_handlings(text)
  if text == '-' then return -1 end
  return text ~= '' and whole(text, 0, MAX_INSTANT, 'handlings') or nil
end

-- Settles with a reason stand in ARGV, from `at` to the end, each as: token, id, due ('' = now),
-- error, what was raised ('' or as the client writes it), handlings (see read_handlings). Returns
-- them in this order.
local function read_failures(at)
  local failures, bytes = {}, 0
  while args[at] do
    local token, id = name(args[at], 'token'), name(args[at + 1], 'id')
    local due, reason, raised = args[at + 2], args[at + 3], args[at + 4]
    if string.find(token, '%s') then refuse('INVALID', 'token') end
    if not reason or #reason > MAX_ERROR then refuse('INVALID', 'error') end
    if not args[at + 5] or #raised > MAX_ERROR then refuse('INVALID', 'raised') end
    due = math.max(due ~= '' and read_due(due) or 0, this.now)
    bytes = bytes + #reason + #raised
    failures[#failures + 1] = {
      token = token, id = id, due = due, reason = reason ~= '' and reason or nil,
      raised = raised ~= '' and raised or nil, handlings = read_handlings(args[at + 5]),
    }
    at = at + 6
  end
  if #failures > MAX_JOBS or bytes > MAX_BYTES then refuse('INVALID', 'too much for one call') end
  return failures
end

-- The hold of a job if its lease is current and has this token, else nil.
local function hold_of(id, token)
  local hold = call('HGET', key.holds, id)
  if not hold or string.sub(hold, 1, #token + 1) ~= token .. ' ' then return nil end
  return call('ZSCORE', key.leased, id) and hold
end
