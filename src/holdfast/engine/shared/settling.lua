-- settling: which of the settles in a call present the last token given out

-- Settles stand in ARGV as: groups, then per group token, n, n ids.
-- Returns groups {token, first, last} (places in ARGV), and where ARGV goes on.
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

-- Keep those that present the last token given out, each id once. Returns ids, their
-- holds, '1' or '0' per settle, and which settle each id came from.
local function held(groups, must_be_leased)
  local ids, holds, numbers, flags, taken = {}, {}, {}, {}, {}
  local n, total = 0, 0
  for _, group in ipairs(groups) do
    local found = call('HMGET', key.holds, unpack(ARGV, group.first, group.last))
    local presented, before = group.token .. ' ', group.first - 1
    local length = #presented
    for i = 1, #found do
      local id, hold = ARGV[before + i], found[i]
      total = total + 1
      if hold and string.sub(hold, 1, length) == presented and not taken[id]
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
