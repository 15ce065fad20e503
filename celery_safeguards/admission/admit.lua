-- Ask to start a key: claim it where nothing stands in the way, else tell how it stands.
--
-- KEYS  meta, record, owner index
-- ARGV  lease us, candidate epoch, owner, '1' if the message proves no earlier start, its epoch or '', then a write
-- Returns  status, now, epoch, admit_from, takeover_from, and with it for
--          'claimed'  the fence;  'found'  the record as JSON;  'absent'  ''
--
-- Safe to run twice: the second time finds its own claim.

local now, lease_us = now_us(), tonumber(ARGV[1])
local m = meta(KEYS[1], now, lease_us, ARGV[2], true)
local holder = redis.call('HMGET', KEYS[2], 'owner', 'rev', 'fence')
if holder[1] then
  if holder[1] == ARGV[3] and holder[2] == '1' then
    return {'claimed', text(now), m[1], m[2], m[3], holder[3]}
  end
  return reply('found', now, m, KEYS[2])
end
local same_epoch = ARGV[5] == '' or ARGV[5] == m[1]
if ARGV[4] ~= '1' or not same_epoch or now < tonumber(m[2]) then
  return {'absent', text(now), m[1], m[2], m[3], ''}
end
write(KEYS[2], now, 6)
return {'claimed', text(now), m[1], m[2], m[3], claim(KEYS[2], KEYS[3], ARGV[3], now, lease_us)}
