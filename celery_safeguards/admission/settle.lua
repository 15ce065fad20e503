-- Write an outcome under the owner and fence of a claim. No clock decides: lapsed but not taken still settles.
--
-- KEYS  meta, record, owner index
-- ARGV  lease us, candidate epoch, owner, fence, state it must be in, state to be, '1' to write a record that is gone,
--       '1' to keep the claim, then a write
-- Returns  status 'settled' | 'already' | 'refused' | 'gone', now, epoch, admit_from, takeover_from, and with
--          'refused' the record as JSON
--
-- Safe to run twice: the second time answers 'already'.

local now = now_us()
local m = meta(KEYS[1], now, tonumber(ARGV[1]), ARGV[2], true)
local r = redis.call('HMGET', KEYS[2], 'owner', 'fence', 'state')
local status
if not r[1] then
  status = ARGV[7] == '1' and 'settled' or 'gone'
elseif r[1] ~= ARGV[3] or r[2] ~= ARGV[4] then
  status = 'refused'
elseif r[3] == ARGV[5] then
  status = 'settled'
elseif r[3] == ARGV[6] then
  status = 'already'
else
  status = 'refused'
end
if status == 'settled' then
  write(KEYS[2], now, 9)
end
if ARGV[8] ~= '1' then
  redis.call('DEL', KEYS[3])
end
if status == 'refused' then
  return reply(status, now, m, KEYS[2])
end
return {status, text(now), m[1], m[2], m[3], ''}
