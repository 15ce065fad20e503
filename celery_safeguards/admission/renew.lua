-- Renew many claims and locks. One run a tick for a whole worker; with none it is the worker's pulse.
--
-- KEYS  meta, records ..., locks ...
-- ARGV  lease us, candidate epoch, how many records, the owner of each, then for each lock what renew_locks takes
-- Returns  {now, epoch, admit_from, takeover_from}, then for each record {status, the record or ''}, then the fences of
--          the locks, '0' for one that is not its owner's;
--          status 'renewed' | 'absent' (no record, or this owner's with an outcome) | 'taken'
--
-- Safe to run twice.

local now, lease_us, records = now_us(), tonumber(ARGV[1]), tonumber(ARGV[3])
local m = meta(KEYS[1], now, lease_us, ARGV[2], true)
local out = {{text(now), m[1], m[2], m[3]}}
for n = 2, records + 1 do
  local owner, r = ARGV[n + 2], stored(KEYS[n])
  if not r or (r.owner == owner and r.state ~= 'in_progress') then
    out[n] = {'absent', ''}
  elseif r.owner ~= owner or r.lost ~= '0' then
    out[n] = {'taken', ''}
  else
    r.lease = text(now + lease_us)
    out[n] = {'renewed', put(KEYS[n], r, nil)}
  end
end
out[records + 2] = renew_locks(records + 2, records + 4, now, m)
return out
