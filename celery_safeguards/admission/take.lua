-- Take a key's claim, if the record is as it was seen.
--
-- KEYS  meta, record
-- ARGV  lease us, candidate epoch, owner, rev as seen (0: no record), state to be, asking to be, then a write
-- Returns lines: status 'taken' | 'moved', now, epoch, admit_from, takeover_from, the record as JSON or ''
--
-- Safe to run twice: a record that is this owner's, in the state asked for, was taken by the first run.

local now, lease_us = now_us(), tonumber(ARGV[1])
local m = meta(KEYS[1], now, lease_us, ARGV[2], true)
local r = redis.call('HMGET', KEYS[2], 'rev', 'owner', 'state', 'asking', 'fence')
local mine = r[2] == ARGV[3] and r[3] == ARGV[5] and (r[4] or '') == ARGV[6]
if (r[1] or '0') == ARGV[4] then
  write(KEYS[2], r[1], claim(ARGV[3], r[5], now, lease_us), now, 7)
elseif not mine then
  return reply('moved', now, m, whole(KEYS[2]))
end
return reply('taken', now, m, whole(KEYS[2]))
