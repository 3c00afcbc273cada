-- adding: nothing -> ready | delayed | parked
--
-- `read_jobs`, `check_groups` and `choose` only read; `create`, `create_each` and `update_each`
-- write.

-- The options of a job, as the client packs them (see read_facts).
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

-- Read jobs from a list of words, from `at` to the end. They stand in groups that share everything
-- but id and payload:
--     fresh, priority, due ('' = now), options ('' = none), n, then n times id, payload
-- fresh '1': the client made the ids, so they need no look-up. This does not hold for an unknown
-- caller, because its call may be an old repetition whose answer is forgotten. It always holds for
-- a chunk, which exists only once. In a chunk, each group begins with one more word: the request,
-- or ''.
local function read_jobs(words, at, chunk)
  local groups, total, bytes = {}, 0, 0
  while words[at] do
    local request = chunk and words[at]
    if request then at = at + 1 end
    local priority = whole(words[at + 1], 0, MAX_PRIORITY, 'priority')
    local due, packed, made = words[at + 2], words[at + 3], words[at] == '1'
    local n = whole(words[at + 4], 1, MAX_JOBS, 'count')
    local first, last = at + 5, at + 4 + 2 * n
    if not words[last] then refuse('INVALID', 'count') end
    due = due ~= '' and read_due(due) or nil
    local options = packed ~= '' and read_options(packed) or nil
    if due then
      -- The score of a delayed job is its due time, so the facts keep its priority and number.
      options = options or {}
      options.priority, options.number = priority ~= 50 and priority or nil, 0
    end
    for i = first, last, 2 do
      local size = #words[i + 1]
      name(words[i], 'id')
      bytes = bytes + size
      if size > this.largest then
        this.largest = size
        note('largest', size)
      end
    end
    groups[#groups + 1] = {
      words = words, made = made, fresh = made and (request or not this.new_caller),
      first = first, last = last, request = request, priority = priority, due = due,
      facts = options,
      options = packed ~= '' and packed, ids = false, pairs = false, successors = false,
    }
    total, at = total + n, last + 1
  end
  if total > MAX_JOBS or bytes > MAX_BYTES then refuse('INVALID', 'too much for one call') end
  return groups, total
end

-- The letter of the set that has an id, for the receipt of an add that added nothing: 'p' if it is
-- in no other set, 'e' if only the ending of a part is left.
local function state_of(id)
  local sets = {
    r = key.ready, l = key.leased, d = key.delayed, f = key.failed, e = key.ended,
  }
  for letter, set in pairs(sets) do
    if call('ZSCORE', set, id) then return letter end
  end
  return call('HEXISTS', key.jobs, id) == 1 and 'p' or 'e'
end

-- Whether the job with this id will end as cancelled, is not a part, and has no successor.
local function is_marked(id)
  local facts = facts_of(id)
  return facts.cancelled and not facts.request and call('HEXISTS', key.next, id) == 0
end

-- Decide which jobs of a group can have their ids.
local function choose_each(group, taken)
  local ids, pairs_, letters, successors, words = {}, {}, {}, {}, group.words
  for i = group.first, group.last, 2 do
    local id = words[i]
    if not taken[id] and is_free(id, group.made) then
      taken[id] = group.due and 'd' or group.facts and group.facts.group and 'p' or 'r'
      ids[#ids + 1] = id
      pairs_[#pairs_ + 1] = id
      pairs_[#pairs_ + 1] = words[i + 1]
      letters[#letters + 1] = '1'
    else
      -- Only this very job can have an id that the client made.
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

-- Decide what create() writes. Sets ids, pairs and successors of each group, and returns one letter
-- per job: '1', 'L' for a job that waits until a cancelled run is over, or the letter of the set
-- that already has its id. Reads every key that create() will write, except `jobs`: that is written
-- first, so it may fail.
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

-- The update that a job of this group makes to a taken id (see waiting.lua). `how` is four letters:
-- replace the data (0, 1)? the due time (= yes, - no, > only by a later one, < only by an earlier
-- one)? the limits (0, 1)? reset the counts (0, 1)? If only some options are replaced, their names
-- follow, each after a space.
local function update_of(group, payload, how)
  local data, when, limits, counts, only =
    string.match(how or '', '^([01])([=<>-])([01])([01])([%l_ ]*)$')
  if not data then refuse('INVALID', 'update') end
  for option in string.gmatch(only, '%S+') do
    if not is_named(option, 'priority handler timeout_ms max_failures max_lapses min_backoff_ms '
      .. 'max_backoff_ms result_for_ms remember_for_ms keep group') then
      refuse('INVALID', 'update')
    end
  end
  local due = math.max(group.due or 0, this.now)
  due = due > this.now and due or 0
  return {
    payload = payload, data = data == '1', due = due, priority = group.priority,
    options = group.options, limits = limits == '1', counts = counts == '1',
    only = only ~= '' and string.sub(only, 2) or nil,
    most = (when == '=' or when == '<') and due or nil,
    least = (when == '=' or when == '>') and due or nil,
  }
end

-- Fails, before the first write, if a request has the name of a job's group.
local function check_groups(groups)
  for _, group in ipairs(groups) do
    local named = group.facts and group.facts.group
    if named then
      check_requests()
      local record = request_of(named)
      if record and record.group == 0 then
        refuse('WRONG', 'a request has the name of the group')
      end
    end
  end
end

-- Keep the jobs that were added under the id of a cancelled run, until that run is over.
local function keep_successors(group)
  local words = group.words
  for _, i in ipairs(group.successors or {}) do
    call('HSET', key.next, words[i], cmsgpack.pack(update_of(group, words[i + 1], '1=11')))
    book()
  end
end

-- nothing -> ready | delayed, for jobs without a group.
local function create(groups)
  local all = {}
  for _, group in ipairs(groups) do
    local ids, due, facts, words = group.ids, group.due, group.facts, group.words
    if group.fresh then
      ids = {}
      for i = group.first, group.last, 2 do ids[#ids + 1] = words[i] end
      call('HSET', key.jobs, unpack(words, group.first, group.last))
    elseif #ids > 0 then
      call('HSET', key.jobs, unpack(group.pairs))
      call('ZREM', key.ended, unpack(ids))
      call('HDEL', key.results, unpack(ids))
      call('HDEL', key.facts, unpack(ids))
    end
    keep_successors(group)
    local n = #ids
    if n > 0 then
      local rank, scored = rank_of(group.priority, take_numbers(n)), {}
      for i = 1, n do
        scored[2 * i - 1], scored[2 * i] = due or rank + i, ids[i]
        all[#all + 1] = ids[i]
      end
      call('ZADD', due and key.delayed or key.ready, unpack(scored))
      if due then tend_by(due) end
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
        this.has_facts = true
      end
      this.grantable = this.grantable or not due or due - this.now < 1000
    end
  end
  tell('added', all)
end

-- nothing -> ready | delayed | parked: like create, also for jobs with a group.
local function create_each(groups)
  for _, group in ipairs(groups) do
    if group.facts and group.facts.group then
      local pairs_, words = group.pairs, group.words
      if not pairs_ then
        pairs_ = {}
        for i = group.first, group.last do pairs_[#pairs_ + 1] = words[i] end
      end
      for i = 1, #pairs_, 2 do
        call('ZREM', key.ended, pairs_[i])
        call('HDEL', key.results, pairs_[i])
        become(pairs_[i], update_of(group, pairs_[i + 1], '1=11'), group.due)
      end
      keep_successors(group)
    else
      create({group})
    end
  end
end

-- nothing -> ready | delayed | parked; a job that exists is changed instead. Returns one letter per
-- job (see update).
local function update_each(groups, how)
  local letters, updated = {}, {}

  local function update_job(id, update, due)
    if call('ZSCORE', key.leased, id) then
      keep_successor(id, update)
      updated[#updated + 1] = id
      return 'L'
    end
    local letter = change(id, update)
    if letter then
      updated[#updated + 1] = id
      return letter
    end
    if not is_free(id, false) then return 'e' end
    call('ZREM', key.ended, id)
    call('HDEL', key.results, id)
    become(id, update, due)
    return '1'
  end

  for _, group in ipairs(groups) do
    local words = group.words
    for i = group.first, group.last, 2 do
      local id = words[i]
      -- Only this very job can have an id that the client made. Then this call is an old repetition
      -- whose answer is forgotten.
      if group.made and not is_free(id, true) then
        letters[#letters + 1] = '1'
      elseif group.request and request_in(id) and call('HEXISTS', key.jobs, id) == 1 then
        letters[#letters + 1] = 'p'  -- Too late to refuse: the write is committed.
      else
        letters[#letters + 1] = update_job(id, update_of(group, words[i + 1], how), group.due)
      end
    end
  end
  tell('updated', updated)
  return letters
end

-- The first number among the next n of a request that already belongs to a plain job; nil if there
-- is none.
local function taken_part(request, first, n)
  local ids = {}
  for i = 1, n do ids[i] = part_id(request, first + i - 1) end
  local has_endings = call('ZCARD', key.ended) > 0
  for i, payload in ipairs(call('HMGET', key.jobs, unpack(ids))) do
    if payload or has_endings and call('ZSCORE', key.ended, ids[i]) then return first + i - 1 end
  end
  return nil
end

-- nothing -> parked | delayed: the next parts of a request. facts: the options that they share.
local function append_parts(request, record, payloads, priority, due, facts)
  local n, before, ids, jobs, packed, scored = #payloads, record.total, {}, {}, {}, {}
  local number = take_numbers(n)
  facts.request, facts.priority = request, priority ~= 50 and priority or nil
  local before_place = parked_prefix(request) .. string.format('%02d', MAX_PRIORITY - priority)
  local as_all = cmsgpack.pack(facts)
  for i = 1, n do
    local id = part_id(request, before + i - 1)
    ids[i], jobs[2 * i - 1], jobs[2 * i] = id, id, payloads[i]
    packed[2 * i - 1], packed[2 * i] = id, as_all
    if due then
      facts.number = number + i
      packed[2 * i], scored[2 * i - 1], scored[2 * i] = cmsgpack.pack(facts), due, id
    else
      local place = string.format('%010d%014d', before + i - 1, 0)
      scored[2 * i - 1], scored[2 * i] = 0, before_place .. place .. id
    end
  end
  if not due then record.parked = record.parked + n end
  call('HSET', key.jobs, unpack(jobs))
  call('HSET', key.facts, unpack(packed))
  this.has_facts = true
  call('ZADD', due and key.delayed or key.parked, unpack(scored))
  if due then
    tend_by(due)
    if due - this.now < 1000 then this.grantable = true end
  end
  record.total = before + n
  tell('added', ids)
end
