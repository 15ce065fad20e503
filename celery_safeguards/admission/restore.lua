-- Write a live owner's claim back into a store that has lost it.
--
-- KEYS  meta, record, owner index
-- ARGV  lease us, candidate epoch, owner, epoch of the copy, then a write
-- Returns  status 'restored' | 'refused', now, epoch, admit_from, takeover_from, the record as JSON or ''
--
-- Only into another epoch than the copy's: in the same one a missing record has expired or was discarded, it was not
-- lost. Safe to run twice: the second time finds its own record and renews it.

local now, lease_us = now_us(), tonumber(ARGV[1])
local m = meta(KEYS[1], now, lease_us, ARGV[2], true)
local r = redis.call('HMGET', KEYS[2], 'owner', 'state', 'lost_us')
-- An owner that has settled meanwhile needs nothing back: its outcome must not become a claim again.
local stands = r[1] and (r[1] ~= ARGV[3] or r[2] ~= 'in_progress' or (r[3] or '0') ~= '0')
if stands or m[1] == ARGV[4] then
  return reply('refused', now, m, KEYS[2])
end
write(KEYS[2], now, 5)
redis.call('SET', KEYS[3], KEYS[2], 'PX', 86400000)
return reply('restored', now, m, KEYS[2])
