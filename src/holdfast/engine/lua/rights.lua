-- rights: which commands this user may not run on the keys of this queue; changes nothing
--
-- ARGV   time
-- reply  names of commands
--
-- A user who gets an answer may run scripts. The script runs none of these commands, because that
-- might be denied.

local denied = {}
for _, command in ipairs({
  {'HDEL', key.jobs, ''}, {'HEXISTS', key.jobs, ''}, {'HGET', key.jobs, ''},
  {'HGETALL', key.workers}, {'HINCRBY', key.meta, '', 1}, {'HLEN', key.jobs},
  {'HMGET', key.jobs, ''}, {'HRANDFIELD', key.calls, 1}, {'HSCAN', key.jobs, '0'},
  {'HSET', key.jobs, '', ''}, {'HSTRLEN', key.jobs, ''}, {'LLEN', key.wake},
  {'LPUSH', key.wake, ''}, {'TIME'}, {'UNLINK', key.wake}, {'ZADD', key.ready, 0, ''},
  {'ZCARD', key.ready}, {'ZCOUNT', key.ready, 0, 0}, {'ZLEXCOUNT', key.parked, '-', '+'},
  {'ZMSCORE', key.ready, ''}, {'ZPOPMIN', key.ready}, {'ZRANGE', key.ready, 0, 0},
  {'ZRANK', key.ready, ''}, {'ZREM', key.ready, ''}, {'ZSCORE', key.ready, ''},
  {'PUBLISH', key.events, ''}, {'BLPOP', key.wake, 0}, {'SUBSCRIBE', key.events},
  {'SCRIPT', 'LOAD', ''},
}) do
  if not redis.acl_check_cmd(unpack(command)) then denied[#denied + 1] = command[1] end
end
return denied
