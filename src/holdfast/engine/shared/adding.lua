-- adding: nothing -> ready | delayed | parked
--
-- `read_jobs`, `check_groups` and `choose` only read, `create` and `create_each` write.

-- What a job says about itself, as the client packs it (see read_facts).
local function read_options(packed)
  local options, sound = read_facts(packed)
  local least = {
    handler = 1, keep = 0, max_failures = -1, max_lapses = -1, timeout_ms = 0,
    min_backoff_ms = 0, max_backoff_ms = 0, result_for_ms = 0, remember_for_ms = 0,
    group = 1, group_limit = -1,
  }
  for option, value in pairs(options) do
    if not least[option]
      or type(value) == 'number' and value < least[option]
      or type(value) == 'string' and (#value < 1 or #value > MAX_NAME) then
      sound = false
    end
  end
  if not sound or options.group_limit and not options.group
    or options.group and is_follow_up(options.group) then
    refuse('INVALID', 'options')
  end
  return options
end

-- Jobs stand in ARGV, from `at` to the end, in groups that share all but id and payload:
--     fresh, priority, due ('' = now), options ('' = none), n, then n times id, payload
-- fresh '1': the client made the ids, so they need no look-up. Unless we do not know the
-- caller: then this may be a call of long ago whose answer is forgotten.
local function read_jobs(at)
  local groups, total, bytes = {}, 0, 0
  while ARGV[at] do
    local priority = whole(ARGV[at + 1], 0, MAX_PRIORITY, 'priority')
    local due, packed, made = ARGV[at + 2], ARGV[at + 3], ARGV[at] == '1'
    local n = whole(ARGV[at + 4], 1, MAX_JOBS, 'count')
    local first, last = at + 5, at + 4 + 2 * n
    if not ARGV[last] then refuse('INVALID', 'count') end
    due = due ~= '' and read_due(due) or nil
    local options = packed ~= '' and read_options(packed) or nil
    if due then
      -- While it is delayed its score is the time, so priority and number wait in the facts.
      options = options or {}
      options.priority, options.number = priority ~= 50 and priority or nil, 0
    end
    for i = first, last, 2 do
      local size = #ARGV[i + 1]
      name(ARGV[i], 'id')
      bytes = bytes + size
      if size > this.largest then
        this.largest = size
        note('largest', size)
      end
    end
    groups[#groups + 1] = {
      made = made, fresh = made and not this.new_caller, first = first, last = last,
      priority = priority, due = due, facts = options,
      options = packed ~= '' and packed, ids = false, pairs = false, successors = false,
    }
    total, at = total + n, last + 1
  end
  if total > MAX_JOBS or bytes > MAX_BYTES then refuse('INVALID', 'too much for one call') end
  return groups
end

-- The letter of the set that has an id (parked where no other has, or the ending of a part): the
-- receipt of an add that added nothing.
local function state_of(id)
  local sets = {
    r = key.ready, l = key.leased, d = key.delayed, f = key.failed, e = key.ended,
  }
  for letter, set in pairs(sets) do
    if call('ZSCORE', set, id) then return letter end
  end
  return call('HEXISTS', key.jobs, id) == 1 and 'p' or 'e'
end

-- Is the job with this id to end as cancelled, and does nothing wait for that?
local function is_marked(id)
  local facts = facts_of(id)
  return facts.cancelled and not facts.request and call('HEXISTS', key.next, id) == 0
end

-- Sort out the jobs of a group whose ids may be taken.
local function choose_each(group, taken)
  local ids, pairs_, letters, successors = {}, {}, {}, {}
  for i = group.first, group.last, 2 do
    local id = ARGV[i]
    if not taken[id] and is_free(id, group.made) then
      taken[id] = group.due and 'd' or group.facts and group.facts.group and 'p' or 'r'
      ids[#ids + 1] = id
      pairs_[#pairs_ + 1] = id
      pairs_[#pairs_ + 1] = ARGV[i + 1]
      letters[#letters + 1] = '1'
    else
      -- An id that the client made is taken only by this very job.
      local letter = group.made and '1' or taken[id] or state_of(id)
      if letter == 'l' and not taken[id] and is_marked(id) then
        letter, taken[id] = 'L', 'l'
        successors[#successors + 1] = i
      end
      letters[#letters + 1] = letter
    end
  end
  group.ids, group.pairs, group.successors = ids, pairs_, successors
  return table.concat(letters)
end

-- Sort out the jobs to create: per group what to write, and one letter per job: '1', 'L'
-- for what waits until a cancelled run is over, or the set that already has its id.
-- Reads every key that create will write, but for `jobs`:
-- that is written first, so it may fail.
local function choose(groups)
  local flags, taken = '', {}
  this.asleep = call('LLEN', key.wake) == 0
  for _, group in ipairs(groups) do
    call('ZCARD', group.due and key.delayed or key.ready)
    if group.facts or not group.fresh then call('HLEN', key.facts) end
    if group.fresh then
      flags = flags .. string.rep('1', (group.last - group.first + 1) / 2)
    else
      call('HLEN', key.results)
      flags = flags .. choose_each(group, taken)
    end
  end
  return flags
end

-- What a job of this group says about an id that is taken (see waiting.lua). `how` is four
-- letters: replace the data? the due time (= yes, - no, > by a later one, < by an earlier)?
-- the limits? begin the counts anew?
local function update_of(group, payload, how)
  local data, when, limits, counts = string.match(how or '', '^([01])([=<>-])([01])([01])$')
  if not data then refuse('INVALID', 'update') end
  local due = group.due or 0
  return {
    payload = payload, data = data == '1', due = due, priority = group.priority,
    options = group.options, limits = limits == '1', counts = counts == '1',
    most = (when == '=' or when == '<') and due or nil,
    least = (when == '=' or when == '>') and due or nil,
  }
end

-- Fails, before anything was written, when a job cannot be of the group that it names.
local function check_groups(groups)
  for _, group in ipairs(groups) do
    local named = group.facts and group.facts.group
    if named then
      check_requests()
      local record = request_of(named)
      if record and record.group == 0 then refuse('WRONG', 'a request has the name of the group') end
    end
  end
end

-- nothing -> ready | delayed, for jobs of no group.
local function create(groups)
  local all = {}
  for _, group in ipairs(groups) do
    local ids, due, facts = group.ids, group.due, group.facts
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
    for _, i in ipairs(group.successors or {}) do
      call('HSET', key.next, ARGV[i], cmsgpack.pack(update_of(group, ARGV[i + 1], '1=11')))
    end
    local n = #ids
    if n > 0 then
      local rank, scored = rank_of(group.priority, take_numbers(n)), {}
      for i = 1, n do
        scored[2 * i - 1], scored[2 * i] = due or rank + i, ids[i]
        all[#all + 1] = ids[i]
      end
      call('ZADD', due and key.delayed or key.ready, unpack(scored))
      if facts then
        local pairs_, packed = {}, cmsgpack.pack(facts)
        for i = 1, n do
          if due then
            facts.number = (rank + i) % RANKS
            packed = cmsgpack.pack(facts)
          end
          pairs_[2 * i - 1], pairs_[2 * i] = ids[i], packed
        end
        call('HSET', key.facts, unpack(pairs_))
      end
      this.grantable = this.grantable or not due or due - this.now < 1000
    end
  end
  tell('added', all)
end

-- nothing -> ready | delayed | parked: the same, also for jobs of a group.
local function create_each(groups)
  for _, group in ipairs(groups) do
    if group.facts and group.facts.group then
      local pairs_ = group.pairs
      if not pairs_ then
        pairs_ = {}
        for i = group.first, group.last do pairs_[#pairs_ + 1] = ARGV[i] end
      end
      for i = 1, #pairs_, 2 do
        call('ZREM', key.ended, pairs_[i])
        call('HDEL', key.results, pairs_[i])
        become(pairs_[i], update_of(group, pairs_[i + 1], '1=11'))
      end
      for _, i in ipairs(group.successors or {}) do
        call('HSET', key.next, ARGV[i], cmsgpack.pack(update_of(group, ARGV[i + 1], '1=11')))
      end
    else
      create({group})
    end
  end
end
