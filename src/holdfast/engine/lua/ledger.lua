-- ledger: what is kept about an attempt, a write, a writer, a reader, a claim; changes nothing
--
-- ARGV   time, the names of the records (see shared/ledger.lua)
-- reply  the records, '' for none

look()
if #ARGV < 2 or #ARGV > MAX_JOBS then refuse('INVALID', 'names') end
local records = {}
for i = 2, #ARGV do
  if #ARGV[i] < 1 or #ARGV[i] > 2 * MAX_NAME then refuse('INVALID', 'name') end
  records[i - 1] = call('HGET', key.ledger, ARGV[i]) or ''
end
return records
