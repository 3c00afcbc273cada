-- totals: how often what happened, since the queue was first used
--
-- ARGV   time
-- reply  added, leased, completed, retried, released, reclaimed, failed, cancelled, revived
--
-- Nobody counts what is added: each job took a number of the sequence, as did what was
-- promoted and what was given a new rank.

look()
local counted = call('HMGET', key.meta, 'sequence', 'leased', 'completed', 'retried', 'released',
  'reclaimed', 'failed', 'cancelled', 'revived', 'promoted', 'requeued')
for i = 1, #counted do counted[i] = tonumber(counted[i]) or 0 end
counted[1] = math.max(0, counted[1] - counted[10] - counted[11])
counted[10], counted[11] = nil, nil
return counted
