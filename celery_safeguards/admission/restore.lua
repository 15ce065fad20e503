-- Write a live owner's claim back into a store that has lost it.
--
-- KEYS  meta, record
-- ARGV  lease us, candidate epoch, owner, epoch of the copy, then a write
-- Returns lines: status 'restored' | 'refused', now, epoch, admit_from, takeover_from, ''
--
-- Only into another epoch than the copy's: in the same one a missing record has expired or was discarded, it was not
-- lost. Never over an outcome, not even this owner's: its child may have settled into the new store already.
-- Safe to run twice: the second time finds its own claim and writes it again.

local now, lease_us = now_us(), tonumber(ARGV[1])
local m = meta(KEYS[1], now, lease_us, ARGV[2], true)
local r = redis.call('HMGET', KEYS[2], 'owner', 'state', 'rev')
local is_claim = r[1] == ARGV[3] and r[2] == 'in_progress'
if (r[1] and not is_claim) or m[1] == ARGV[4] then
  return reply('refused', now, m, '')
end
write(KEYS[2], r[3], {}, now, 5)
return reply('restored', now, m, '')
