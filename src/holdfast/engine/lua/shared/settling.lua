-- settling: the settles in a call, and which of them present the last token given out

-- Settles stand in ARGV as: number of groups, then per group token, n, n ids. Returns groups
-- {token, first, last} (places in ARGV), and the place after them.
local function read_settles(at)
  local groups, total = {}, 0
  local n_groups = whole(ARGV[at], 0, MAX_JOBS, 'settles')
  at = at + 1
  for i = 1, n_groups do
    local token, n = name(ARGV[at], 'token'), whole(ARGV[at + 1], 1, MAX_JOBS, 'settles')
    local first, last = at + 2, at + 1 + n
    total = total + n
    if string.find(token, '%s') then refuse('INVALID', 'token') end
    if total > MAX_JOBS or not ARGV[last] then refuse('INVALID', 'settles') end
    for place = first, last do name(ARGV[place], 'id') end
    groups[i] = {token = token, first = first, last = last}
    at = last + 1
  end
  return groups, at
end

-- Results stand in ARGV as: n, then n times number of the settle, result. Returns them by number,
-- and the place after them.
local function read_results(at)
  local results, bytes = {}, 0
  local n = whole(ARGV[at], 0, MAX_JOBS, 'results')
  for i = at + 1, at + 2 * n, 2 do
    local result = ARGV[i + 1]
    if not result then refuse('INVALID', 'results') end
    results[whole(ARGV[i], 1, MAX_JOBS, 'results')] = result
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
    local found = call('HMGET', key.holds, unpack(ARGV, group.first, group.last))
    local leased = must_be_leased
      and call('ZMSCORE', key.leased, unpack(ARGV, group.first, group.last))
    local presented, before = group.token .. ' ', group.first - 1
    local length = #presented
    for i = 1, #found do
      local id, hold = ARGV[before + i], found[i]
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
  while ARGV[at] do
    local token, id = name(ARGV[at], 'token'), name(ARGV[at + 1], 'id')
    local due, reason, raised = ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
    if string.find(token, '%s') then refuse('INVALID', 'token') end
    if not reason or #reason > MAX_ERROR then refuse('INVALID', 'error') end
    if not ARGV[at + 5] or #raised > MAX_ERROR then refuse('INVALID', 'raised') end
    due = math.max(due ~= '' and read_due(due) or 0, this.now)
    bytes = bytes + #reason + #raised
    failures[#failures + 1] = {
      token = token, id = id, due = due, reason = reason ~= '' and reason or nil,
      raised = raised ~= '' and raised or nil, handlings = read_handlings(ARGV[at + 5]),
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
