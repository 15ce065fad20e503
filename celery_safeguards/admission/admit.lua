-- Ask to start a key: claim it where nothing stands in the way, else tell how it stands.
--
-- KEYS  meta, record, owner index
-- ARGV  lease us, candidate epoch, owner, '1' if the message proves no earlier start, its epoch or '', then a write
-- Returns  status 'claimed' | 'found' | 'absent', now, epoch, admit_from, takeover_from, the record's fields and values
--
-- Safe to run twice: the second time finds its own claim.

local now, lease_us = now_us(), tonumber(ARGV[1])
local m = meta(KEYS[1], now, lease_us, ARGV[2], true)
if redis.call('EXISTS', KEYS[2]) == 1 then
  return reply('found', now, m, KEYS[2])
end
local same_epoch = ARGV[5] == '' or ARGV[5] == m[1]
if ARGV[4] ~= '1' or not same_epoch or now < tonumber(m[2]) then
  return reply('absent', now, m, KEYS[2])
end
write(KEYS[2], now, 6)
claim(KEYS[2], KEYS[3], ARGV[3], now, lease_us)
return reply('claimed', now, m, KEYS[2])
