-- What the workers of one broker namespace say of themselves: written by one, read by all.
--
-- KEYS[1] hash: worker -> "<microseconds of this server> <report as JSON>"
-- ARGV: worker ('' only reads), its report ('' takes it off), how long it counts in milliseconds
--
-- Each counts for as long as it says itself, in `keep_ms`: one who writes seldom is not gone for one who writes often.
--
-- Returns worker and report of each that counts.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function is_over(at, report)
  local is_read, plain = pcall(cjson.decode, report)
  local keep = is_read and type(plain) == 'table' and tonumber(plain.keep_ms) or tonumber(ARGV[3])
  return now - tonumber(at) >= keep * 1000
end

local writes = ARGV[1] ~= ''

if writes and ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
elseif writes then
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now) .. ' ' .. ARGV[2])
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
  end
end

local answer = {}
local found = redis.call('HGETALL', KEYS[1])
for i = 1, #found, 2 do
  local at, report = string.match(found[i + 1], '^(%d+) (.*)$')
  if at and not is_over(at, report) then
    answer[#answer + 1] = found[i]
    answer[#answer + 1] = report
  elseif writes then
    -- A worker that died without a word.
    redis.call('HDEL', KEYS[1], found[i])
  end
end
return answer
