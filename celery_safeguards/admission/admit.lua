-- Ask to start a key: claim it where nothing stands in the way, else tell how it stands.
--
-- KEYS  meta, record, and the lock that goes with the claim: both are taken or neither
-- ARGV  lease us, candidate epoch, owner, '1' if the message proves no earlier start, its epoch or '', and the new
--       record's format, body and retention in ms; with a lock its lease in us and its holder
-- Returns lines: status, now, epoch, admit_from, takeover_from, and with it for
--          'claimed'  the fence, and the lock's;  'found'  the record;  'absent'  '';
--          'barred'   until when the lock is held as it stands now, and the lock
--
-- Safe to run twice: the second time finds its own claim.

local now, lease_us = now_us(), tonumber(ARGV[1])
local m = meta(KEYS[1], now, lease_us, ARGV[2], true)
local value = redis.call('GET', KEYS[2])
if value then
  local r = parts_of(value)
  local l = KEYS[3] and lock_of(KEYS[3])
  if r.owner == ARGV[3] and r.rev == '1' and (not l or l.owner == ARGV[3]) then
    -- The caller counts its lease from this question; the one that claimed may be long ago. The revision stays the first.
    r.lease, r.rev = text(now + lease_us), '0'
    put(KEYS[2], r, nil)
    if l then
      take_lock(KEYS[3], l, ARGV[3], tonumber(ARGV[9]), ARGV[10], now)
    end
    return reply('claimed', now, m, r.fence .. ' ' .. (l and l.fence or '0'))
  end
  return reply('found', now, m, value)
end
local same_epoch = ARGV[5] == '' or ARGV[5] == m[1]
if ARGV[4] ~= '1' or not same_epoch or now < tonumber(m[2]) then
  return reply('absent', now, m, '')
end
local lock_fence = '0'
if KEYS[3] then
  local l = lock_of(KEYS[3])
  local until_us = barred_until(l, ARGV[3], now, m)
  if until_us then
    return reply('barred', now, m, text(until_us) .. '\n' .. (l.text or ''))
  end
  take_lock(KEYS[3], l, ARGV[3], tonumber(ARGV[9]), ARGV[10], now)
  lock_fence = l.fence
end
-- Written out, since most runs end here: in progress, the first revision, a series that begins now, nothing due.
local begins = text(now)
local head = ARGV[6] .. ' in_progress ' .. ARGV[3] .. ' ' .. begins .. ' 1 ' .. text(now + lease_us)
redis.call('SET', KEYS[2], head .. ' 0 ' .. begins .. ' 0 0 0\n' .. ARGV[7], 'PX', ARGV[8])
return reply('claimed', now, m, begins .. ' ' .. lock_fence)
