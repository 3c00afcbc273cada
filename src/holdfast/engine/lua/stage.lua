-- stage: nothing -> staged: one chunk of the rows that a task writes
--
-- ARGV   time, caller, number, attempt, number of the chunk, keep_for_ms, chunk (see read_chunk)
-- reply  how many chunks the attempt has
--
-- The rows become jobs when the write is committed. Chunks must come in order; a chunk that is
-- there already is a repetition and counts once. Chunks that are not adopted in time are forgotten.

local again = begin()
if again then return again end

local attempt, number = attempt_name(ARGV[4]), whole(ARGV[5], 0, MAX_INSTANT, 'chunk')
local keep_for, bytes = whole(ARGV[6], 1, MAX_INSTANT, 'keep_for'), ARGV[7]
if not bytes then refuse('INVALID', 'chunk') end
read_chunk(bytes)
check_staging()
local entry = 'attempt ' .. attempt
local kept = entry_of(entry) or {chunks = 0}
local chunks = number_in(kept, 'chunks')
if kept.of then refuse('WRONG', 'what is staged is about to be committed') end
if number > chunks then refuse('GONE', '0') end

if number == chunks then
  kept.chunks = chunks + 1
  call('HSET', key.staged, chunk_field(attempt, number), bytes)
end
enter(entry, kept, after_ms(keep_for))
return finish({kept.chunks})
