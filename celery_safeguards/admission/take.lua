-- Take a key's claim, if the record is as it was seen.
--
-- KEYS  meta, record, and the lock that goes with the claim: both are taken or neither
-- ARGV  lease us, candidate epoch, owner, rev as seen (0: no record), then a write whose body is laid over the
--       record's; with a lock its lease in us and its holder
-- Returns lines: status 'taken' | 'moved' | 'barred', now, epoch, admit_from, takeover_from, then for
--          'taken' the lock's fence and the record; 'moved' the record or ''; 'barred' as in admit.lua
--
-- Safe to run twice: a record that is this owner's, in the state asked for, was taken by the first run.

local now, lease_us = now_us(), tonumber(ARGV[1])
local m = meta(KEYS[1], now, lease_us, ARGV[2], true)
local r = stored(KEYS[2])
local lock_fence = '0'
if KEYS[3] and (r and r.rev or '0') == ARGV[4] then
  local l = lock_of(KEYS[3])
  local until_us = barred_until(l, ARGV[3], now, m)
  if until_us then
    return reply('barred', now, m, text(until_us) .. '\n' .. (l.text or ''))
  end
  take_lock(KEYS[3], l, ARGV[3], tonumber(ARGV[14]), ARGV[15], now)
  lock_fence = l.fence
end
if (r and r.rev or '0') == ARGV[4] then
  local fields = r and cjson.decode(r.body) or {}
  r = r or blank()
  lay(r, 5, now)
  for field, value in pairs(cjson.decode(r.body)) do
    fields[field] = value
  end
  r.body = cjson.encode(fields)
  claim(r, ARGV[3], now, lease_us)
  return reply('taken', now, m, lock_fence .. '\n' .. put(KEYS[2], r, ARGV[13]))
end
if r and r.owner == ARGV[3] and r.state == ARGV[6] and r.asking == ARGV[7] then
  local l = KEYS[3] and lock_of(KEYS[3])
  if not l or l.owner == ARGV[3] then
    return reply('taken', now, m, (l and l.fence or '0') .. '\n' .. r.text)
  end
end
return reply('moved', now, m, r and r.text or '')
