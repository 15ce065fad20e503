-- Ask to start a key: claim it where nothing stands in the way, else tell how it stands.
--
-- KEYS  meta, record
-- ARGV  lease us, candidate epoch, owner, '1' if the message proves no earlier start, its epoch or '', then a write
-- Returns lines: status, now, epoch, admit_from, takeover_from, and with it for
--          'claimed'  the fence;  'found'  the record as JSON;  'absent'  ''
--
-- Safe to run twice: the second time finds its own claim.

local now, lease_us = now_us(), tonumber(ARGV[1])
local m = meta(KEYS[1], now, lease_us, ARGV[2], true)
local r = redis.call('HMGET', KEYS[2], 'owner', 'rev', 'fence')
if r[1] == ARGV[3] and r[2] == '1' then
  -- The caller counts its lease from this question; the one that claimed may be long ago.
  redis.call('HSET', KEYS[2], 'lease_until_us', text(now + lease_us))
  return reply('claimed', now, m, r[3])
end
if r[1] then
  return reply('found', now, m, whole(KEYS[2]))
end
local same_epoch = ARGV[5] == '' or ARGV[5] == m[1]
if ARGV[4] ~= '1' or not same_epoch or now < tonumber(m[2]) then
  return reply('absent', now, m, '')
end
local held = claim(ARGV[3], nil, now, lease_us)
local fence = held[4]
write(KEYS[2], nil, held, now, 6)
return reply('claimed', now, m, fence)
