-- Note that an owner died, and of what. The claim is kept: it is the evidence that a body was started. Its lock is freed.
--
-- KEYS  record, and with a lock the lock and who waits for it
-- ARGV  owner, failure as JSON, '1' if its right to send what follows must run out, prefix of the keys that wake
-- Returns  1 if it is this owner's claim in progress, else 0
--
-- An owner that died between its outcome and the sending of what follows gives up its right to send at once, unless
-- somebody else must forget it first.
-- Safe to run twice: the first time of death stays.

local l = KEYS[2] and lock_of(KEYS[2])
if l and l.owner == ARGV[1] then
  free_lock(KEYS[2], l, KEYS[3], ARGV[4])
end
local r = stored(KEYS[1])
if not r or r.owner ~= ARGV[1] then
  return 0
end
if r.state == 'done' and ARGV[3] ~= '1' and (cjson.decode(r.body).continuing or '') ~= '' then
  r.lease = text(now_us())
  put(KEYS[1], r, nil)
end
if r.state ~= 'in_progress' then
  return 0
end
if r.lost == '0' then
  local fields = cjson.decode(r.body)
  fields.failure = cjson.decode(ARGV[2])
  r.lost, r.body = text(now_us()), cjson.encode(fields)
  put(KEYS[1], r, nil)
end
return 1
