-- settling: which of the settles in a call present the last token given out

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
