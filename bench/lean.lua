#!lua name=floor
-- The floor of the design: what a job's life costs with leases that lapse, completion that is fenced
-- by the token of the lease, and answers that are remembered, and with nothing else: no counters,
-- no events, no checks of arguments, no delays, failures, results or requests.
--
-- KEYS   ready, leased, holds, jobs, calls, meta, wake

-- ARGV   caller, number, then n times id, payload
local function add(keys, args)
  local last = redis.call('HGET', keys[5], args[1])
  if last and string.match(last, '^%d+') == args[2] then return 0 end
  local n, ready = (#args - 2) / 2, {}
  local number = redis.call('HINCRBY', keys[6], 'sequence', n) - n
  for i = 1, n do ready[2 * i - 1], ready[2 * i] = number + i, args[2 * i + 1] end
  redis.call('HSET', keys[4], unpack(args, 3))
  redis.call('ZADD', keys[1], unpack(ready))
  redis.call('HSET', keys[5], args[1], args[2] .. ' ')
  if redis.call('LLEN', keys[7]) == 0 then redis.call('LPUSH', keys[7], '1') end
  return n
end

-- Complete a job and lease the next.
--
-- ARGV   caller, number, lease_ms, id to complete ('' = none), its token
-- reply  id ('' = none is ready), payload
local function turn(keys, args)
  local ready, leased, holds, jobs, calls = keys[1], keys[2], keys[3], keys[4], keys[5]
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local number, id = string.match(redis.call('HGET', calls, args[1]) or '', '^(%d+) (.*)')
  if number == args[2] then return {id, redis.call('HGET', jobs, id)} end
  for _, lapsed in ipairs(redis.call('ZRANGE', leased, '-inf', now, 'BYSCORE', 'LIMIT', 0, 100)) do
    redis.call('ZADD', ready, string.match(redis.call('HGET', holds, lapsed), '%d+$'), lapsed)
    redis.call('ZREM', leased, lapsed)
  end
  local done, token = args[4], args[5]
  if done ~= '' then
    local hold = redis.call('HGET', holds, done)
    if hold and string.sub(hold, 1, #token + 1) == token .. ' ' then
      redis.call('ZREM', leased, done)
      redis.call('HDEL', holds, done)
      redis.call('HDEL', jobs, done)
    end
  end
  local best = redis.call('ZPOPMIN', ready)
  id = best[1] or ''
  local payload = id ~= '' and redis.call('HGET', jobs, id)
  if payload then
    redis.call('ZADD', leased, now + args[3], id)
    redis.call('HSET', holds, id, args[1] .. '.' .. args[2] .. ' ' .. best[2])
  end
  redis.call('HSET', calls, args[1], args[2] .. ' ' .. id)
  return {id, payload}
end

redis.register_function('floor_add', add)
redis.register_function('floor_turn', turn)
