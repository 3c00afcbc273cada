-- set_result: store or replace the result of a job, whoever runs it or ran it
--
-- ARGV   time, caller, number, id, result
-- reply  '1' stored; '0' no job has this id; 'n' the job keeps no result

local again = begin()
if again then return again end

local id, result = name(ARGV[4], 'id'), ARGV[5]
if not result or #result > MAX_BYTES then refuse('INVALID', 'result') end
call('HLEN', key.results)
call('HLEN', key.requests)

local flag, facts, request = '0', facts_of(id), request_in(id)
if call('ZSCORE', key.ended, id) then
  flag = '1'
elseif call('HEXISTS', key.jobs, id) == 1 then
  flag = (request or (facts.result_for_ms or 0) > 0) and '1' or 'n'
elseif request then
  flag = '1'  -- A part that has ended.
end
if flag == '1' then
  local record = request and request_of(request)
  local new = call('HSET', key.results, id, result)
  if record then
    record.results = record.results + new
    call('HSET', key.requests, request, pack_request(record))
  end
  tell('result', {id})
end
return finish({flag})
