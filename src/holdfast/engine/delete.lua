-- delete: the whole queue, whatever is in it
--
-- ARGV   time, caller, number
-- reply  1
--
-- Nothing remains, not even the answer to this call: asked again it deletes again. One that
-- arrives after a later call of its caller is refused, as any other.

local ok, refusal = pcall(begin)
-- Whatever somebody has put in the way is deleted too.
if not ok then
  refusal = type(refusal) == 'table' and refusal.err or refusal  -- servers differ in this
  local word = string.match(refusal, '^%u+')
  if word ~= 'WRONGTYPE' and word ~= 'BROKEN' then error({err = refusal}) end
end
call('UNLINK', unpack(KEYS))
redis.pcall('PUBLISH', key.events, cmsgpack.pack({{'deleted', 0, {}}}))
return 1
