-- ledger: the records of attempts, writes, writers, readers and claims; changes nothing
--
-- ARGV   time, the names of the records (see shared/ledger.lua)
-- reply  the records, '' for each that is missing

look()
if #ARGV < 2 or #ARGV > MAX_JOBS then refuse('INVALID', 'names') end
local records = {}
for i = 2, #ARGV do
  if #ARGV[i] < 1 or #ARGV[i] > 2 * MAX_NAME then refuse('INVALID', 'name') end
  records[i - 1] = call('HGET', key.ledger, ARGV[i]) or ''
end
return records
