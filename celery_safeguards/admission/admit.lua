-- Ask to start a key: claim it where nothing stands in the way, else tell how it stands.
--
-- KEYS  meta, record
-- ARGV  lease us, candidate epoch, owner, '1' if the message proves no earlier start, its epoch or '', and the new
--       record's format, body and retention in ms
-- Returns lines: status, now, epoch, admit_from, takeover_from, and with it for
--          'claimed'  the fence;  'found'  the record;  'absent'  ''
--
-- Safe to run twice: the second time finds its own claim.

local now, lease_us = now_us(), tonumber(ARGV[1])
local m = meta(KEYS[1], now, lease_us, ARGV[2], true)
local value = redis.call('GET', KEYS[2])
if value then
  local r = parts_of(value)
  if r.owner == ARGV[3] and r.rev == '1' then
    -- The caller counts its lease from this question; the one that claimed may be long ago. The revision stays the first.
    r.lease, r.rev = text(now + lease_us), '0'
    put(KEYS[2], r, nil)
    return reply('claimed', now, m, r.fence)
  end
  return reply('found', now, m, value)
end
local same_epoch = ARGV[5] == '' or ARGV[5] == m[1]
if ARGV[4] ~= '1' or not same_epoch or now < tonumber(m[2]) then
  return reply('absent', now, m, '')
end
-- Written out, since most runs end here: in progress, the first revision, a series that begins now, nothing due.
local begins = text(now)
local head = ARGV[6] .. ' in_progress ' .. ARGV[3] .. ' ' .. begins .. ' 1 ' .. text(now + lease_us)
redis.call('SET', KEYS[2], head .. ' 0 ' .. begins .. ' 0 0 0\n' .. ARGV[7], 'PX', ARGV[8])
return reply('claimed', now, m, begins)
