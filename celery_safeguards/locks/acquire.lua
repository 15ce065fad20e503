-- Ask for a lock: take it, or be given notice when it is free.
--
-- KEYS  meta, lock, waiting
-- ARGV  lease us of claims, candidate epoch, owner, lease us of the lock, holder as JSON,
--       'take' | 'reserve' (keep it for this owner for a moment),
--       us for which this owner counts as waiting if it is barred; '' not to wait, '1' if it has waited already
-- Returns lines: 'taken' | 'reserved' | 'barred', now, epoch, admit_from, takeover_from, then for
--          'taken' the fence, for 'barred' until when as it stands now, and the lock
--
-- Safe to run twice: the second time finds its own claim, reservation or place.

local now, owner = now_us(), ARGV[3]
local m = meta(KEYS[1], now, tonumber(ARGV[1]), ARGV[2], true)
local l = lock_of(KEYS[2])
local until_us = barred_until(l, owner, now, m)
if until_us then
  if ARGV[7] ~= '' then
    local known = redis.call('HGET', KEYS[3], owner)
    local since = known and string.match(known, '^%d+') or text(now)
    local way = ARGV[6] == 'reserve' and ' keep ' or ' give '
    redis.call('HSET', KEYS[3], owner, since .. ' ' .. text(now + tonumber(ARGV[7])) .. way .. ARGV[5])
    redis.call('PEXPIRE', KEYS[3], WAKE_MS)
  end
  return reply('barred', now, m, text(until_us) .. '\n' .. (l.text or ''))
end
if ARGV[8] == '1' then
  redis.call('HDEL', KEYS[3], owner)
end
if ARGV[6] == 'reserve' then
  if l.owner ~= owner then
    -- A lapsed one is free from here on: as its last owner's it would be given to whoever asks next.
    l.owner, l.lease, l.next, l.next_until = '-', '0', owner, text(now + RESERVED_US)
    put_lock(KEYS[2], l, now)
  end
  return reply('reserved', now, m, '')
end
take_lock(KEYS[2], l, owner, tonumber(ARGV[4]), ARGV[5], now)
return reply('taken', now, m, l.fence)
