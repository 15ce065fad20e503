-- Renew many locks. One run a tick for a whole process.
--
-- KEYS  meta, locks ...
-- ARGV  lease us of claims, candidate epoch, then for each lock what renew_locks takes
-- Returns  for each lock its fence, '0' if it is not this owner's
--
-- Safe to run twice.

local now = now_us()
local m = meta(KEYS[1], now, tonumber(ARGV[1]), ARGV[2], true)
return renew_locks(2, 3, now, m)
