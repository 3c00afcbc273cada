-- What every transition shares: the names of the keys, the clock, the caller's last
-- answer, and the few functions that move a job from one set to another.
--
-- A script is a header line, this file and one <transition>.lua, sent as one text.
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
-- All this is made anew for every call, so what costs is what a transition does not need:
-- groups of functions that only some need are made by a function (settling, completing,
-- returning, maintaining, adding), and few locals are captured (hence key, MAX, this).

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

-- ----------------------------------------------------------------- settling

-- For those who end or extend a lease.
local function settling()
  -- Settles stand in ARGV as: groups, then per group token, n, n ids.
  -- Returns groups {token, first, last} (places in ARGV), how many, and where ARGV goes on.
  local function read_settles(at)
    local groups, total = {}, 0
    local n_groups = whole(ARGV[at], 0, MAX.jobs, 'settles')
    at = at + 1
    for i = 1, n_groups do
      local token = name(ARGV[at], 'token')
      if string.find(token, '%s') then refuse('INVALID', 'token') end
      local n = whole(ARGV[at + 1], 1, MAX.jobs, 'settles')
      total = total + n
      if total > MAX.jobs or not ARGV[at + 1 + n] then refuse('INVALID', 'settles') end
      for place = at + 2, at + 1 + n do name(ARGV[place], 'id') end
      groups[i] = {token = token, first = at + 2, last = at + 1 + n}
      at = at + 2 + n
    end
    return groups, at
  end

  -- Keep those that present the last token given out, each id once. Returns ids, their
  -- holds, '1' or '0' per settle, and which settle each id came from.
  local function held(groups, must_be_leased)
    local ids, holds, flags, numbers, taken = {}, {}, {}, {}, {}
    local n, total = 0, 0
    for _, group in ipairs(groups) do
      local found = call('HMGET', key.holds, unpack(ARGV, group.first, group.last))
      local presented = group.token .. ' '
      for i = 1, #found do
        local id, hold = ARGV[group.first + i - 1], found[i]
        total = total + 1
        if hold and not taken[id] and string.find(hold, presented, 1, true) == 1
          and not (must_be_leased and not call('ZSCORE', key.leased, id)) then
          taken[id] = true
          n = n + 1
          ids[n], holds[n], numbers[n], flags[total] = id, hold, total, '1'
        else
          flags[total] = '0'
        end
      end
    end
    return ids, holds, table.concat(flags), numbers
  end

  return read_settles, held
end

-- For those who complete.
local function completing()
  -- Results stand in ARGV as: n, then n times the number of the settle, result.
  local function read_results(at)
    local results, bytes = {}, 0
    local n = whole(ARGV[at], 0, MAX.jobs, 'results')
    for i = at + 1, at + 2 * n, 2 do
      local result = ARGV[i + 1]
      if not result then refuse('INVALID', 'results') end
      results[whole(ARGV[i], 1, MAX.jobs, 'results')] = result
      bytes = bytes + #result
    end
    if bytes > MAX.bytes then refuse('INVALID', 'too much for one call') end
    return results, at + 1 + 2 * n
  end

  -- The ending of a job that wants to be remembered.
  local function end_with(id, facts, result)
    local result_for, remember_for = facts.result_for_ms or 0, facts.remember_for_ms or 0
    local keep = facts.keep and result_for > 0 or nil
    if result and result_for > 0 then call('HSET', key.results, id, result) end
    if not keep then call('HDEL', key.jobs, id) end
    set_facts(id, {
      outcome = 'completed', ended_at = this.now, keep = keep,
      taken_until = remember_for > 0 and after_ms(remember_for) or nil,
    })
    call('ZADD', key.ended, after_ms(math.max(result_for, remember_for)), id)
  end

  -- leased (or waiting again after a reclaim) -> gone, or its ending remembered.
  -- numbers: which settle each id came from; results: number of the settle -> bytes.
  local function complete(ids, numbers, results)
    if #ids == 0 then return end
    -- What is not leased was reclaimed: it must not stay where it waits.
    if call('ZREM', key.leased, unpack(ids)) < #ids then call('ZREM', key.ready, unpack(ids)) end
    call('HDEL', key.holds, unpack(ids))
    local gone = ids
    if this.has_facts then
      gone = {}
      local found = call('HMGET', key.facts, unpack(ids))
      for i, id in ipairs(ids) do
        local facts = read_facts(found[i])
        if (facts.result_for_ms or 0) > 0 or (facts.remember_for_ms or 0) > 0 then
          end_with(id, facts, results[numbers[i]])
        else
          gone[#gone + 1] = id
        end
      end
      if #gone > 0 then call('HDEL', key.facts, unpack(gone)) end
    end
    if #gone > 0 then call('HDEL', key.jobs, unpack(gone)) end
    tell('completed', ids)
  end

  return read_results, complete
end

-- For those who take jobs back.
local function returning()
  -- A hold is '<token> <leased_at> <rank>', then ' <request>' for a part. Where somebody
  -- removed it the job gets the rank of a new one: a broken hold must not stop the queue.
  local function rank_in(hold)
    local rank = tonumber(string.match(hold or '', '^%S+ %d+ (%d+)'))
    if rank and rank < 100 * STEP then return rank end
    redis.pcall('HINCRBY', key.meta, 'requeued', 1)
    return rank_of(50, sequence(1) + 1)
  end

  local function priority_in(hold)
    return MAX.priority - math.floor(rank_in(hold) / STEP)
  end

  -- leased -> ready, at the rank it had or behind its equals.
  local function give_back(ids, holds, to_the_back)
    if #ids == 0 then return end
    local ready, first = {}, to_the_back and sequence(#ids)
    for i, id in ipairs(ids) do
      local rank = rank_in(holds[i])
      if to_the_back then rank = rank_of(priority_in(holds[i]), first + i) end
      ready[2 * i - 1], ready[2 * i] = rank, id
    end
    if to_the_back then redis.pcall('HINCRBY', key.meta, 'requeued', #ids) end
    call('ZREM', key.leased, unpack(ids))
    call('ZADD', key.ready, unpack(ready))
    this.grantable = true
  end

  -- A run that did not answer. Returns those that may run again; the others -> failed.
  local function count_lapse(ids, holds, reason)
    local again, again_holds, spent, failed = {}, {}, {}, {}
    for i, id in ipairs(ids) do
      local facts = facts_of(id)
      local limit = facts.max_lapses or MAX.lapses
      facts.lapses = (facts.lapses or 0) + 1
      facts.error = reason
      if limit >= 0 and facts.lapses > limit then
        local priority = priority_in(holds[i])
        if priority ~= 50 then facts.priority = priority end
        facts.failed_at = this.now
        spent[#spent + 1] = id
        failed[#failed + 1] = this.now
        failed[#failed + 1] = id
      else
        again[#again + 1], again_holds[#again_holds + 1] = id, holds[i]
      end
      set_facts(id, facts)
    end
    if #spent > 0 then
      call('ZREM', key.leased, unpack(spent))
      call('HDEL', key.holds, unpack(spent))
      call('ZADD', key.failed, unpack(failed))
      tell('failed', spent)
    end
    return again, again_holds
  end

  return give_back, count_lapse, priority_in
end

-- -------------------------------------------------------------- maintenance

-- For those who keep house. `overdue` only reads, so it goes before the first write of a
-- call; it also checks the types of what `maintain` will write.
local function maintaining()
  local function is_due(set)
    return call('ZCOUNT', set, '-inf', this.now) > 0
  end

  local function overdue(force)
    local found = {
      delayed = is_due(key.delayed), lapsed = is_due(key.leased), old = is_due(key.ended),
    }
    if found.lapsed then call('ZCARD', key.failed) end
    if found.old then call('HLEN', key.results) end
    found.lapsed = found.lapsed and (force or this.now >= this.grace)
    return found
  end

  local function due(set)
    return call('ZRANGE', set, '-inf', this.now, 'BYSCORE', 'LIMIT', 0, MAX.jobs)
  end

  -- delayed -> ready, in due order.
  local function promote()
    local ids = due(key.delayed)
    local found = call('HMGET', key.facts, unpack(ids))
    local ready, first = {}, sequence(#ids)
    for i, id in ipairs(ids) do
      local facts = read_facts(found[i])
      ready[2 * i - 1], ready[2 * i] = rank_of(facts.priority or 50, first + i), id
      if facts.priority then
        facts.priority = nil
        set_facts(id, facts)
      end
    end
    call('ZREM', key.delayed, unpack(ids))
    call('ZADD', key.ready, unpack(ready))
    this.grantable = true
    tell('promoted', ids)
    return #ids
  end

  -- leased -> ready. The hold stays: until the job is given out again, its last holder may
  -- still complete it.
  local function reclaim(to_the_back)
    local ids = due(key.leased)
    if #ids == 0 then return 0 end
    local give_back, count_lapse = returning()
    local again, holds = count_lapse(ids, call('HMGET', key.holds, unpack(ids)), 'the lease lapsed')
    give_back(again, holds, to_the_back)
    tell('reclaimed', again)
    return #ids
  end

  local function prune()
    local ids = due(key.ended)
    for _, hash in ipairs({'results', 'facts', 'jobs'}) do call('HDEL', key[hash], unpack(ids)) end
    call('ZREM', key.ended, unpack(ids))
    tell('pruned', ids)
    return #ids
  end

  -- Promote, reclaim and prune, at most MAX.jobs of each. Returns how many.
  local function maintain(found, to_the_back)
    return found.delayed and promote() or 0, found.lapsed and reclaim(to_the_back) or 0,
      found.old and prune() or 0
  end

  return overdue, maintain
end

-- ------------------------------------------------------------------- adding

-- For those who add.
local function adding()
  -- What a job says about itself, as the client packs it (see read_facts).
  local function read_options(packed)
    if packed == '' then return nil end
    local options, sound = read_facts(packed)
    local least = {
      handler = 1, keep = 0, max_failures = -1, max_lapses = -1, timeout_ms = 0,
      min_backoff_ms = 0, max_backoff_ms = 0, result_for_ms = 0, remember_for_ms = 0,
    }
    for option, value in pairs(options) do
      if not least[option]
        or type(value) == 'number' and value < least[option]
        or type(value) == 'string' and (#value < 1 or #value > MAX.name) then
        sound = false
      end
    end
    if not sound then refuse('INVALID', 'options') end
    return options
  end

  -- '' is now, '+ms' from now, 'ms' at that time. Returns nil for what is due already.
  local function read_due(text)
    local sign, digits = string.match(text or '', '^(%+?)(.*)$')
    if digits == '' then return nil end
    local at = whole(digits, 0, MAX.instant, 'due')
    if sign == '+' then at = after_ms(at) end
    return at > this.now and at or nil
  end

  -- Jobs stand in ARGV, from `at` to the end, in groups that share all but id and payload:
  --     fresh, priority, due, options, n, then n times id, payload
  -- fresh '1': the client made the ids, so they need no look-up. Unless we do not know the
  -- caller: then this may be a call of long ago whose answer is forgotten.
  local function read_jobs(at)
    local groups, total, bytes = {}, 0, 0
    while ARGV[at] do
      local made = ARGV[at] == '1'
      local group = {made = made, fresh = made and not this.new_caller, first = at + 5}
      group.priority = whole(ARGV[at + 1], 0, MAX.priority, 'priority')
      group.due = read_due(ARGV[at + 2])
      local options = read_options(ARGV[at + 3] or '')
      if group.due and group.priority ~= 50 then
        -- While it is delayed its score is the time, so the priority waits in the facts.
        options = options or {}
        options.priority = group.priority
      end
      group.facts = options and cmsgpack.pack(options)
      local n = whole(ARGV[at + 4], 1, MAX.jobs, 'count')
      group.last = at + 4 + 2 * n
      if not ARGV[group.last] then refuse('INVALID', 'count') end
      for i = group.first, group.last, 2 do
        local size = #ARGV[i + 1]
        name(ARGV[i], 'id')
        bytes = bytes + size
        if size > this.largest then
          this.largest = size
          this.meta.largest = size
        end
      end
      groups[#groups + 1] = group
      total = total + n
      at = group.last + 1
    end
    if total > MAX.jobs or bytes > MAX.bytes then refuse('INVALID', 'too much for one call') end
    return groups
  end

  -- Is this id free? An ending is in the way only while the id is to be remembered; of an
  -- id that the client made, always.
  local function is_free(id, made)
    local forget_at = call('ZSCORE', key.ended, id)
    if not forget_at then return call('HEXISTS', key.jobs, id) == 0 end
    if made then return false end
    return tonumber(forget_at) <= this.now or (facts_of(id).taken_until or 0) <= this.now
  end

  -- The letter of the set that has an id: the receipt of an add that added nothing.
  local function state_of(id)
    local sets = {r = 'ready', l = 'leased', d = 'delayed', f = 'failed', e = 'ended'}
    for letter, set in pairs(sets) do
      if call('ZSCORE', key[set], id) then return letter end
    end
    return 'p'
  end

  -- Sort out the jobs to create: per group what to write, and one letter per job: '1', or
  -- the set that already has its id. Reads every key that create will write, but for `jobs`:
  -- that is written first, so it may fail.
  local function choose(groups)
    local flags, taken = {}, {}
    this.asleep = call('LLEN', key.wake) == 0
    for _, group in ipairs(groups) do
      call('ZCARD', group.due and key.delayed or key.ready)
      if group.facts or not group.fresh then call('HLEN', key.facts) end
      if not group.fresh then call('HLEN', key.results) end
      local n = (group.last - group.first + 1) / 2
      if group.fresh then
        flags[#flags + 1] = string.rep('1', n)
      else
        group.ids, group.pairs = {}, {}
        for i = group.first, group.last, 2 do
          local id = ARGV[i]
          if not taken[id] and is_free(id, group.made) then
            taken[id] = group.due and 'd' or 'r'
            group.ids[#group.ids + 1] = id
            group.pairs[#group.pairs + 1] = id
            group.pairs[#group.pairs + 1] = ARGV[i + 1]
            flags[#flags + 1] = '1'
          else
            -- An id that the client made is taken only by this very job.
            flags[#flags + 1] = group.made and '1' or taken[id] or state_of(id)
          end
        end
      end
    end
    return table.concat(flags)
  end

  -- nothing -> ready | delayed
  local function create(groups)
    local all = {}
    for _, group in ipairs(groups) do
      local ids = group.ids
      if group.fresh then
        ids = {}
        for i = group.first, group.last, 2 do ids[#ids + 1] = ARGV[i] end
        call('HSET', key.jobs, unpack(ARGV, group.first, group.last))
      elseif #ids > 0 then
        call('HSET', key.jobs, unpack(group.pairs))
        call('ZREM', key.ended, unpack(ids))
        call('HDEL', key.results, unpack(ids))
        call('HDEL', key.facts, unpack(ids))
      end
      if #ids > 0 then
        local scored, facts, first = {}, {}, sequence(#ids)
        for i, id in ipairs(ids) do
          scored[2 * i - 1] = group.due or rank_of(group.priority, first + i)
          scored[2 * i] = id
          if group.facts then facts[2 * i - 1], facts[2 * i] = id, group.facts end
          all[#all + 1] = id
        end
        call('ZADD', group.due and key.delayed or key.ready, unpack(scored))
        if group.facts then call('HSET', key.facts, unpack(facts)) end
        this.grantable = this.grantable or not group.due or group.due - this.now < 1000
      end
    end
    tell('added', all)
  end

  return read_jobs, choose, create
end
