-- Take a key's claim, if the record is as it was seen.
--
-- KEYS  meta, record
-- ARGV  lease us, candidate epoch, owner, rev as seen (0: no record), then a write whose body is laid over the record's
-- Returns lines: status 'taken' | 'moved', now, epoch, admit_from, takeover_from, the record or ''
--
-- Safe to run twice: a record that is this owner's, in the state asked for, was taken by the first run.

local now, lease_us = now_us(), tonumber(ARGV[1])
local m = meta(KEYS[1], now, lease_us, ARGV[2], true)
local r = stored(KEYS[2])
if (r and r.rev or '0') == ARGV[4] then
  local fields = r and cjson.decode(r.body) or {}
  r = r or blank()
  lay(r, 5, now)
  for field, value in pairs(cjson.decode(r.body)) do
    fields[field] = value
  end
  r.body = cjson.encode(fields)
  claim(r, ARGV[3], now, lease_us)
  return reply('taken', now, m, put(KEYS[2], r, ARGV[13]))
end
if r and r.owner == ARGV[3] and r.state == ARGV[6] and r.asking == ARGV[7] then
  return reply('taken', now, m, r.text)
end
return reply('moved', now, m, r and r.text or '')
