-- set_result: store or replace the result of a job, whoever runs it or ran it
--
-- ARGV   time, caller, number, id, result
-- reply  '1' stored; '0' no job has this id; 'n' the job keeps no result

local again = begin()
if again then return again end

local id, result = name(ARGV[4], 'id'), ARGV[5]
if not result or #result > MAX_BYTES then refuse('INVALID', 'result') end
call('HLEN', key.results)

local flag = '0'
if call('ZSCORE', key.ended, id) then
  flag = '1'
elseif call('HEXISTS', key.jobs, id) == 1 then
  flag = (facts_of(id).result_for_ms or 0) > 0 and '1' or 'n'
end
if flag == '1' then
  call('HSET', key.results, id, result)
  tell('result', {id})
end
return finish({flag})
