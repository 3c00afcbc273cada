-- requests: the records of requests, and which of their parts wait
--
-- The facts of a part name its request, and those of a job of a group name its group: its owner. A
-- group is a request that never ends. A job that waits for its owner's turn is in `parked` as
--     <length of the owner, 3 digits><owner><99 - priority, 2><place, 10><number, 14><id>
-- The place of a part is its number in the request. A part that goes behind the others gets the
-- place of the last one, and a number of the sequence; a job of a group has a number, but no place.
-- The facts then keep both, so that the member can be found.
--
-- A record is a table of numbers, and why the request failed. A call reads a record once and counts
-- in it, and settle_requests writes it: as doubles, in the order of `Record` in replies.py, which
-- costs half of what msgpack does, and then the reason. The follow-up of a request is beside its
-- record, as '<request>/end'. Three fields exist only during the call:
--     todo    whether something is to be decided about it
--     number  the number of its next turn, 0 for none
--     stood   its rank in `turns` before the decisions of this call; `turn` is its rank after them

local NUMBERS = {
  'group', 'priority', 'limit', 'fail_fast', 'keep_for_ms', 'total', 'parked', 'running',
  'failed', 'done', 'handled', 'cancelled', 'results', 'sealed', 'endings', 'walked', 'forgotten',
  'opened_at', 'first_at', 'last_at', 'ended_at', 'stopping', 'outcome', 'turn',
}
local FORMAT, BYTES = '<dddddddddddddddddddddddd', 192  -- of these numbers

local function read_request(packed)
  if not packed or #packed < BYTES then return false end
  local group, priority, limit, fail_fast, keep_for_ms, total, parked, running, failed, done,
    handled, cancelled, results, sealed, endings, walked, forgotten, opened_at, first_at, last_at,
    ended_at, stopping, outcome, turn = struct.unpack(FORMAT, packed)
  local record = {
    todo = false, number = 0, stood = turn, reason = '',
    group = group, priority = priority, limit = limit, fail_fast = fail_fast,
    keep_for_ms = keep_for_ms, total = total, parked = parked, running = running, failed = failed,
    done = done, handled = handled, cancelled = cancelled, results = results, sealed = sealed,
    endings = endings, walked = walked, forgotten = forgotten, opened_at = opened_at,
    first_at = first_at, last_at = last_at, ended_at = ended_at, stopping = stopping,
    outcome = outcome, turn = turn,
  }
  -- Another program may have written the record, and the queue must go on.
  local sum =
    group + priority + limit + fail_fast + keep_for_ms + total + parked + running + failed + done
    + handled + cancelled + results + sealed + endings + walked + forgotten + opened_at + first_at
    + last_at + ended_at + stopping + outcome + turn
  if not (sum >= 0 and sum % 1 == 0 and sum < 16 * MAX_INSTANT) then
    for _, field in ipairs(NUMBERS) do
      local number = record[field]
      local sound = number >= -1 and number % 1 == 0 and number <= MAX_INSTANT
      if not sound then record[field] = field == 'limit' and -1 or 0 end
    end
    record.stood = record.turn
  end
  if not (priority >= 0 and priority <= MAX_PRIORITY) then record.priority = 50 end
  if #packed > BYTES then record.reason = string.sub(packed, BYTES + 1) end
  return record
end

local function pack_request(record)
  local numbers = struct.pack(FORMAT,
    record.group, record.priority, record.limit, record.fail_fast, record.keep_for_ms,
    record.total, record.parked, record.running, record.failed, record.done, record.handled,
    record.cancelled, record.results, record.sealed, record.endings, record.walked,
    record.forgotten, record.opened_at, record.first_at, record.last_at, record.ended_at,
    record.stopping, record.outcome, record.turn)
  return record.reason == '' and numbers or numbers .. record.reason
end

-- The records that this call has met, and those of them about which something is to be decided.
local function met_requests()
  if not this.met then this.met = {records = {}, todo = {}} end
  return this.met
end

-- Look up many records at once: one by one costs five times as much. Returns packed records, for
-- request_of.
local function look_up(owners)
  local records, unknown = met_requests().records, 0
  for i = 1, #owners do
    if records[owners[i]] == nil then unknown = unknown + 1 end
  end
  return unknown > 1 and call('HMGET', key.requests, unpack(owners)) or {}
end

-- A name that ends in '/end' belongs to a follow-up, not to a record.
local function is_follow_up(owner)
  return string.sub(owner, -4) == '/end'
end

local function owner_name(text)
  if is_follow_up(name(text, 'request')) then refuse('INVALID', 'request') end
  return text
end

-- The record of an owner, false if there is none. The caller may change it. packed: the packed
-- record if it was looked up, else nil.
local function request_of(owner, packed)
  local met = this.met or met_requests()
  local record = met.records[owner]
  if record == nil then
    record = not is_follow_up(owner)
      and read_request(packed or call('HGET', key.requests, owner))
    this.has_requests = this.has_requests or record ~= false
    met.records[owner] = record
    if not record then met.todo[#met.todo + 1] = owner end
  end
  if record and not record.todo then
    record.todo = true
    met.todo[#met.todo + 1] = owner
  end
  return record
end

-- Make a record; the owner has none.
local function new_request(owner)
  request_of(owner)
  this.has_requests = true
  local record = {todo = false, number = 0, stood = 0, reason = ''}
  for _, field in ipairs(NUMBERS) do record[field] = 0 end
  record.opened_at, record.limit, record.priority = this.now, -1, 50
  this.met.records[owner] = record
  return request_of(owner)
end

-- Add to one of the counters of a job's owner. Returns the record, if any.
local function count(facts, counter, by)
  local owner = facts.request or facts.group
  local record = owner and request_of(owner)
  if record then record[counter] = record[counter] + by end
  return record
end

-- The lease of a job is over: free its place.
local function vacate(facts)
  local record = count(facts, 'running', -1)
  if record then record.last_at = this.now end
end

-- A request or group is to be processed at this time.
local function set_term(owner, at)
  call('ZADD', key.terms, at, owner)
  tend_by(at)
end

-- A request that had ended is open again.
local function reopen(request, record)
  record.outcome, record.ended_at, record.reason = 0, 0, ''
  set_term(request, MAX_INSTANT)
end

-- Whether this job was cancelled, or its request is being stopped.
local function is_cancelled(facts)
  if facts.cancelled then return true end
  local record = facts.request and not facts.failed_at and request_of(facts.request)
  return record and record.stopping > 0
end

local function part_id(request, number)
  return request .. string.format('/%d', number)
end

-- The request that this id is or was a part of; nil if it is not a part, or the part or its request
-- is forgotten.
local function request_in(id)
  local request, number = string.match(id, '^(.+)/(%d+)$')
  if not request or #number > 14 or is_follow_up(request) then return nil end
  local record = this.met and this.met.records[request]  -- This call may just have forgotten it.
  if record == nil then record = read_request(call('HGET', key.requests, request)) end
  if not record or record.group == 1 or part_id(request, number) ~= id then return nil end
  local forgotten = record.outcome > 0 and record.walked or 0
  number = tonumber(number)
  return number >= forgotten and number < record.total and request or nil
end

local function parked_prefix(owner)
  return string.format('%03d', #owner) .. owner
end

local function parked_member(id, facts)
  local above, number = MAX_PRIORITY - (facts.priority or 50), facts.number or 0
  local place = facts.place or facts.request and tonumber(string.match(id, '%d+$')) or 0
  local order = string.format('%02d%010d%014d', above, place, number)
  return parked_prefix(facts.request or facts.group) .. order .. id
end

-- Returns the id, the rank and the owner that a member of `parked` contains.
local function read_parked(member)
  local start = 4 + (tonumber(string.sub(member, 1, 3)) or 0)
  local above = tonumber(string.sub(member, start, start + 1)) or 0
  local number = tonumber(string.sub(member, start + 12, start + 25)) or 0
  local id, owner = string.sub(member, start + 26), string.sub(member, 4, start - 1)
  return id, above * RANKS + number, owner
end

-- Up to n parked jobs of an owner, in their order, from number `first` on.
local function parked_of(owner, record, first, n)
  local from = parked_prefix(owner)
  if record.parked < n then n = math.max(record.parked, 0) end
  local found = call('ZRANGE', key.parked, '[' .. from, '+', 'BYLEX', 'LIMIT', first, n)
  -- If the record counts too many, the members of other owners follow.
  local last = found[#found]
  while last and string.sub(last, 1, #from) ~= from do
    found[#found] = nil
    last = found[#found]
  end
  return found
end

local function count_parked(owner)
  local from = parked_prefix(owner)
  return call('ZLEXCOUNT', key.parked, '[' .. from, '(' .. from .. ':')
end

-- -> parked
local function park(id, facts)
  call('ZADD', key.parked, 0, parked_member(id, facts))
  count(facts, 'parked', 1)
end

-- parked -> nothing. Returns whether it was there.
local function unpark(id, facts)
  if not (facts.request or facts.group) then return false end
  if call('ZREM', key.parked, parked_member(id, facts)) == 0 then return false end
  count(facts, 'parked', -1)
  return true
end

-- waiting | failed -> nothing. Returns whether it was there.
local function take_out(id, facts)
  if call('ZREM', key.ready, id) + call('ZREM', key.delayed, id) > 0 then return true end
  if unpark(id, facts) then return true end
  if call('ZREM', key.failed, id) == 0 then return false end
  count(facts, 'failed', -1)
  return true
end

-- Count n new jobs in their group, if they name one.
local function join(facts, n)
  local group, limit = facts.group, facts.group_limit
  facts.group_limit = nil
  if not group then return end
  local record = request_of(group)
  if record and record.group == 0 then
    facts.group = nil  -- A request has this name now.
    return
  end
  if not record then
    record = new_request(group)
    record.group = 1
    set_term(group, MAX_INSTANT)
  end
  record.total, record.limit = record.total + n, limit or record.limit
end

-- Whether a part waits, and a place is free for it.
local function has_turn(record)
  local limit = record.limit
  return record.parked > 0 and record.outcome + record.stopping == 0
    and (limit < 0 or record.running < limit)
end

-- Give the owner a turn if a place is free and a part waits, else take it away. `record.turn` is
-- its rank, or 0; decide_met writes it to `turns`.
local function set_turn(owner, record)
  local rank, number = record.turn, record.number
  if not has_turn(record) then
    record.turn = 0
    return
  end
  -- A request has one priority for its turn; a group takes that of its next job.
  local above = MAX_PRIORITY - record.priority
  if record.group == 1 then
    local _, its_rank = read_parked(parked_of(owner, record, 0, 1)[1] or '')
    above = math.floor(its_rank / RANKS)
  end
  if number == 0 and rank > 0 then number = rank % RANKS end
  if number == 0 then
    redis.pcall('HINCRBY', key.meta, 'requeued', 1)
    number = take_numbers(1) + 1
  end
  record.turn = above * RANKS + number
  this.grantable = true
end
