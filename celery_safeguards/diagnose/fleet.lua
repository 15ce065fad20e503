-- What the workers of one broker namespace say of themselves: written by one, read by all.
--
-- KEYS[1] hash: worker -> "<microseconds of this server> <report as JSON>"
-- ARGV: worker ('' only reads), its report ('' takes it off), how long a report counts in milliseconds
--
-- Returns worker and report of each that counts.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local keep = tonumber(ARGV[3]) * 1000
local writes = ARGV[1] ~= ''

if writes and ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
elseif writes then
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now) .. ' ' .. ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end

local answer = {}
local found = redis.call('HGETALL', KEYS[1])
for i = 1, #found, 2 do
  local at, report = string.match(found[i + 1], '^(%d+) (.*)$')
  if at and now - tonumber(at) < keep then
    answer[#answer + 1] = found[i]
    answer[#answer + 1] = report
  elseif writes then
    -- A worker that died without a word.
    redis.call('HDEL', KEYS[1], found[i])
  end
end
return answer
