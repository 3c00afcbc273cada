-- delete: the whole queue, whatever is in it
--
-- ARGV   time
-- reply  1
--
-- Nothing remains, not even the answer to this call. Asked again it deletes again.

look()
call('UNLINK', unpack(KEYS))
redis.pcall('PUBLISH', key.events, cmsgpack.pack({{'deleted', 0, {}}}))
return 1
