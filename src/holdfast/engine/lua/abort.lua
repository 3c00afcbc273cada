-- abort: staged -> nothing, for attempts that are not committed
--
-- ARGV   time, caller, number, attempts
-- reply  '1' per attempt that is finished with, '0' per attempt with chunks left: ask again
--
-- A list of winners that names an aborted attempt can no longer be committed.

local again = begin()
if again then return again end

local n, flags, budget = #ARGV - 3, {}, MAX_CHUNKS
if n < 1 or n > MAX_JOBS then refuse('INVALID', 'attempts') end
for i = 4, #ARGV do attempt_name(ARGV[i]) end
check_staging()
for i = 4, #ARGV do
  local entry = 'attempt ' .. ARGV[i]
  local kept, done = entry_of(entry), true
  local write = kept and type(kept.of) == 'string' and write_of(kept.of)
  local committed = write and call('HEXISTS', key.ledger, 'commit ' .. write) == 1
  if kept and not committed then
    if write then disown(kept.of) end
    if budget > 0 then
      budget = drop_attempt(entry, entry_of(entry), budget)
    end
    done = call('HEXISTS', key.ledger, entry) == 0
  end
  flags[#flags + 1] = done and '1' or '0'
end
return finish({table.concat(flags)})
