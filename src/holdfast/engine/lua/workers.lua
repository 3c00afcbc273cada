-- workers: the registered workers, until when each is alive, and which of its jobs it still holds
--
-- ARGV   time
-- reply  now, then per worker holder, '<alive until> <about>', '1' or '0' for each of `running` in
--        about: whether the last lease of the job is the worker's ('' if about names no jobs)
--
-- A worker reports every few seconds which jobs it runs. This call marks the jobs that have ended
-- since, or went to another worker.

look()

local function still_held(holder, entry)
  local sound, about = pcall(cmsgpack.unpack, string.match(entry, '^%d+ (.*)$') or '')
  local running = sound and type(about) == 'table' and about.running
  local ids, flags, presented = {}, {}, holder .. '.'
  for i = 1, type(running) == 'table' and math.min(#running, MAX_JOBS) or 0 do
    local id = type(running[i]) == 'table' and running[i].id
    ids[i] = type(id) == 'string' and id or ''
  end
  if #ids == 0 then return '' end
  for i, hold in ipairs(call('HMGET', key.holds, unpack(ids))) do
    local is_theirs = ids[i] == '' or hold and string.sub(hold, 1, #presented) == presented
    flags[i] = is_theirs and '1' or '0'
  end
  return table.concat(flags)
end

local found, entries = {string.format('%d', this.now)}, call('HGETALL', key.workers)
for i = 1, #entries, 2 do
  found[#found + 1], found[#found + 2] = entries[i], entries[i + 1]
  found[#found + 1] = still_held(entries[i], entries[i + 1])
end
return found
