-- ledger: what is kept about an attempt, a write, a writer; changes nothing
--
-- ARGV   time, the name of the record (see staging.lua)
-- reply  the record, '' for none

look()
if not ARGV[2] or #ARGV[2] < 1 or #ARGV[2] > 2 * MAX_NAME then refuse('INVALID', 'name') end
return {call('HGET', key.ledger, ARGV[2]) or ''}
