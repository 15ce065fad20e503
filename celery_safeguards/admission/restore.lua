-- Write a live owner's claim back into a store that has lost it.
--
-- KEYS  meta, record
-- ARGV  lease us, candidate epoch, owner, fence, rev, epoch of the copy, then a write
-- Returns lines: status 'restored' | 'refused', now, epoch, admit_from, takeover_from, ''
--
-- Only into another epoch than the copy's: in the same one a missing record has expired or was discarded, it was not
-- lost. Never over an outcome, not even this owner's: its child may have settled into the new store already.
-- Safe to run twice: the second time finds its own claim and writes it again.

local now, lease_us = now_us(), tonumber(ARGV[1])
local m = meta(KEYS[1], now, lease_us, ARGV[2], true)
local r = stored(KEYS[2])
local is_claim = r and r.owner == ARGV[3] and r.state == 'in_progress'
if (r and not is_claim) or m[1] == ARGV[6] then
  return reply('refused', now, m, '')
end
r = r or blank()
-- Above both: the copy's revision is that of its claim, and renewals may have moved the new store's on since.
r.owner, r.fence, r.rev = ARGV[3], ARGV[4], text(math.max(tonumber(r.rev), tonumber(ARGV[5])))
lay(r, 7, now)
put(KEYS[2], r, ARGV[15])
return reply('restored', now, m, '')
