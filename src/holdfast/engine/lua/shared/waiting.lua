-- waiting: where a job stands that is not leased, and how an update changes it. Call check_types
-- first.
--
-- An update is what `add` says about an id that is taken:
--     payload, data               the bytes; whether they replace those of an existing job
--     due                         when the job may run, if the update becomes a new job
--     most, least                 bounds for the due time of an existing job
--     priority, options, limits   the priority and the options (packed, false for none); whether
--                                 they replace those of an existing job
--     only                        or the names of the options to replace, separated by spaces
--     counts                      whether failures and lapses are reset
-- An update of a waiting job is applied at once. An update of a leased job is kept in `next` as its
-- successor, and applied the moment the lease ends.

-- Whether an id is free. An ending blocks the id only while the id is to be remembered, but always
-- if the client made the id. An ended part blocks its id as long as its request exists.
local function is_free(id, made)
  local forget_at = call('ZSCORE', key.ended, id)
  if not forget_at then
    return call('HEXISTS', key.jobs, id) == 0 and (made or not request_in(id))
  end
  if made then return false end
  return tonumber(forget_at) <= this.now or (facts_of(id).taken_until or 0) <= this.now
end

-- A hold is '<token> <leased_at> <rank>'. If it is missing or broken, the job gets the rank of a
-- new one: a broken hold must not stop the queue.
local function rank_in(hold)
  local rank = tonumber(string.match(hold or '', '^%S+ %d+ (%d+)'))
  if rank and rank < 100 * RANKS then return rank end
  redis.pcall('HINCRBY', key.meta, 'requeued', 1)
  return rank_of(50, take_numbers(1) + 1)
end

local function priority_in(hold)
  return MAX_PRIORITY - math.floor(rank_in(hold) / RANKS)
end

-- A new rank for a job that has had one before.
local function rank_behind(priority)
  redis.pcall('HINCRBY', key.meta, 'requeued', 1)
  return rank_of(priority, take_numbers(1) + 1)
end

-- -> ready, at this rank or behind its equals | delayed, with priority and number in the facts, as
-- the score is the time | parked, if it has an owner. by_time: delayed even if the time is past.
local function put_waiting(id, facts, priority, rank, due_at, by_time)
  local waits = by_time or due_at > this.now
  local owner = facts.request or facts.group
  local record = owner and request_of(owner)
  if owner and not record then
    facts.request, facts.group, facts.place = nil, nil, nil  -- Its owner is gone: a plain job.
  end
  if record then
    facts.priority = priority ~= 50 and priority or nil
    if not waits and not rank then
      facts.place = facts.request and record.total - 1 or nil
      facts.number = rank_behind(priority) % RANKS
    elseif facts.group and rank and not facts.number then
      facts.number = rank % RANKS
    elseif waits and not facts.number then
      facts.number = rank_behind(priority) % RANKS
    end
  elseif waits then
    facts.priority = priority ~= 50 and priority or nil
    if not facts.number then rank = rank or rank_behind(priority) end
    if rank then facts.number = rank % RANKS end
  else
    facts.priority, facts.number = nil, nil
  end
  if waits then
    call('ZADD', key.delayed, due_at, id)
    tend_by(due_at)
    this.grantable = this.grantable or due_at - this.now < 1000
  elseif record then
    park(id, facts)
  else
    call('ZADD', key.ready, rank or rank_behind(priority), id)
    this.grantable = true
  end
  set_facts(id, facts)
end

local function is_named(option, only)
  return string.find(' ' .. only .. ' ', ' ' .. option .. ' ', 1, true) ~= nil
end

-- Take the named options from an update. A group comes with its limit.
local function replace_options(facts, options, only)
  for option in string.gmatch(only, '%S+') do
    if option ~= 'priority' then facts[option] = options[option] end
    if option == 'group' then facts.group_limit = options.group_limit end
  end
end

-- Apply an update to an existing job. Returns its facts, priority and due time.
local function apply(update, id, facts, priority, due_at)
  if update.data then call('HSET', key.jobs, id, update.payload) end
  if update.limits then
    local options = read_facts(update.options)
    options.failures, options.lapses, options.error = facts.failures, facts.lapses, facts.error
    options.raised, options.number = facts.raised, facts.number
    if not options.result_for_ms then call('HDEL', key.results, id) end
    count(facts, 'total', -1)
    join(options, 1)
    facts, priority = options, update.priority
  elseif update.only then
    local moves = is_named('group', update.only)
    if moves then count(facts, 'total', -1) end
    replace_options(facts, read_facts(update.options), update.only)
    if moves then join(facts, 1) end
    if not facts.result_for_ms then call('HDEL', key.results, id) end
    if is_named('priority', update.only) then priority = update.priority end
  end
  if update.counts then
    facts.failures, facts.lapses, facts.error, facts.raised = nil, nil, nil, nil
  end
  due_at = math.max(math.min(due_at, update.most or MAX_INSTANT), update.least or 0)
  return facts, priority, due_at
end

-- nothing -> ready | delayed | parked: make a job of an update. due: set if the job was added for a
-- time, which may be past.
local function become(id, update, due)
  call('HSET', key.jobs, id, update.payload)
  local rank, facts = rank_of(update.priority, take_numbers(1) + 1), read_facts(update.options)
  join(facts, 1)
  put_waiting(id, facts, update.priority, rank, due or update.due, due ~= nil)
  tell('added', {id})
end

local function read_update(packed)
  local ok, update = pcall(cmsgpack.unpack, packed or '')
  if not ok or type(update) ~= 'table' or type(update.payload) ~= 'string' then return nil end
  for _, said in ipairs({'due', 'most', 'least', 'after', 'priority'}) do
    if update[said] ~= nil then update[said] = number_in(update, said) end
  end
  update.due, update.priority = update.due or 0, math.min(update.priority or 50, MAX_PRIORITY)
  if type(update.only) ~= 'string' then update.only = nil end
  return update
end

-- Take the successor of a job out of `next`; nil if there is none.
local function take_successor(id)
  local packed = this.has_next and call('HGET', key.next, id)
  if not packed then return nil end
  call('HDEL', key.next, id)
  return read_update(packed)
end

-- Keep an update until the lease ends. Several updates are merged: together they do what they would
-- have done one after another to a waiting job.
local function keep_successor(id, update)
  local kept = read_update(call('HGET', key.next, id))
  if kept then
    if update.data then kept.payload, kept.data = update.payload, true end
    if update.limits then
      kept.priority, kept.options, kept.limits = update.priority, update.options, true
      kept.only = nil
    elseif update.only then
      local options = read_facts(kept.options)
      replace_options(options, read_facts(update.options), update.only)
      kept.options = next(options) and cmsgpack.pack(options) or false
      if is_named('priority', update.only) then kept.priority = update.priority end
      for option in string.gmatch(not kept.limits and update.only or '', '%S+') do
        if not is_named(option, kept.only or '') then
          kept.only = (kept.only and kept.only .. ' ' or '') .. option
        end
      end
    end
    kept.counts = kept.counts or update.counts
    local most, least = update.most or MAX_INSTANT, update.least or 0
    kept.due = math.max(math.min(kept.due, most), least)
    kept.most = math.min(kept.most or MAX_INSTANT, most)
    kept.least = math.max(math.min(kept.least or 0, most), least)
    update = kept
  end
  call('HSET', key.next, id, cmsgpack.pack(update))
  this.has_next = true
end

-- ready | delayed | parked | failed -> ready | delayed | parked, with this update. Returns the
-- letter of its new state, F for a job that had failed, nil if it is in none of these sets.
local function change(id, update)
  local facts, rank, due_at, letter = facts_of(id), call('ZSCORE', key.ready, id), 0, nil
  local priority = facts.priority or 50
  if rank then
    rank = tonumber(rank)
    priority = MAX_PRIORITY - math.floor(rank / RANKS)
    call('ZREM', key.ready, id)
  elseif unpark(id, facts) then
    rank = rank_of(priority, facts.number or 0)
  else
    due_at = tonumber(call('ZSCORE', key.delayed, id))
    if due_at then
      call('ZREM', key.delayed, id)
    elseif call('ZREM', key.failed, id) == 1 then
      count(facts, 'failed', -1)
      letter, update.counts, due_at = 'F', true, update.due
      facts.failed_at, facts.handlings, facts.max_handlings, facts.number = nil, nil, nil, nil
    else
      return nil
    end
  end
  facts, priority, due_at = apply(update, id, facts, priority, due_at)
  if rank then rank = rank_of(priority, rank % RANKS) end
  call('HDEL', key.holds, id)  -- The holder ran the old version: it cannot complete this one.
  put_waiting(id, facts, priority, rank, due_at)
  return letter or due_at > this.now and 'D' or facts.group and 'P' or 'R'
end
