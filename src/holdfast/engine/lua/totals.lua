-- totals: lifetime counters of the queue
--
-- ARGV   time
-- reply  added, leased, completed, retried, released, reclaimed, failed, cancelled, revived
--
-- `added` has no counter of its own: each added job takes a number of the sequence, and so does
-- each job that is promoted or gets a new rank.

look()
local counted = call('HMGET', key.meta, 'sequence', 'leased', 'completed', 'retried', 'released',
  'reclaimed', 'failed', 'cancelled', 'revived', 'promoted', 'requeued')
for i = 1, #counted do counted[i] = tonumber(counted[i]) or 0 end
counted[1] = math.max(0, counted[1] - counted[10] - counted[11])
counted[10], counted[11] = nil, nil
return counted
