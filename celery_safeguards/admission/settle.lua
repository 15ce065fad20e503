-- Write an outcome under the owner and fence of a claim. No clock decides: lapsed but not taken still settles.
--
-- KEYS  meta, record
-- ARGV  lease us, candidate epoch, owner, fence, state it must be in, state to be, '1' to write a record that is gone,
--       then a write
-- Returns lines: status 'settled' | 'already' | 'refused' | 'gone', now, epoch, admit_from, takeover_from, and with
--          'refused' the record as JSON
--
-- Safe to run twice: the second time answers 'already'.

local now = now_us()
local m = meta(KEYS[1], now, tonumber(ARGV[1]), ARGV[2], true)
local r = redis.call('HMGET', KEYS[2], 'owner', 'fence', 'state', 'rev')
local is_gone = not r[1]
if is_gone and ARGV[7] ~= '1' then
  return reply('gone', now, m, '')
end
local is_ours = r[1] == ARGV[3] and r[2] == ARGV[4]
if is_gone or (is_ours and r[3] == ARGV[5]) then
  write(KEYS[2], r[4], {}, now, 8)
  return reply('settled', now, m, '')
end
if is_ours and r[3] == ARGV[6] then
  return reply('already', now, m, '')
end
return reply('refused', now, m, whole(KEYS[2]))
