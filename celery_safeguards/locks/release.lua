-- Release a lock, if it is still this owner's at this fence; or stop waiting for it, and pass on what was kept meanwhile.
--
-- KEYS  lock, waiting
-- ARGV  owner, fence ('0' whatever it is, '' if it only waits), prefix of the keys that wake
-- Returns  '1' if it was this owner's, or nobody has had it since; else the lock as it stands
--
-- Safe to run twice: the second time finds the lock free at its own fence, or a note that it was freed at it, since by
-- then whoever waited has it.

local owner = ARGV[1]
local l = lock_of(KEYS[1])
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[2], owner)
  redis.call('DEL', ARGV[3] .. owner)
  if l.owner == '-' and l.next == owner then
    free_lock(KEYS[1], l, KEYS[2], ARGV[3])
  end
  return '1'
end
local freed_key = ARGV[3] .. owner .. ':freed'
if l.owner == owner and (ARGV[2] == '0' or l.fence == ARGV[2]) then
  redis.call('SET', freed_key, l.fence, 'PX', WAKE_MS)
  free_lock(KEYS[1], l, KEYS[2], ARGV[3])
  return '1'
end
local is_late = ARGV[2] ~= '0' and has_passed_on(l, owner, ARGV[2])
return is_late and redis.call('GET', freed_key) ~= ARGV[2] and l.text or '1'
