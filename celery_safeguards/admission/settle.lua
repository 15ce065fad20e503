-- Write an outcome under the owner and fence of a claim. No clock decides: lapsed but not taken still settles.
--
-- KEYS  record, and to release with it a lock and who waits for it
-- ARGV  owner, fence, rev as the owner knows it, state it must be in, '1' to write a record that is gone, '1' if a time
--       is given from now, then a write of the whole record: under a claim, nobody else writes its body;
--       with a lock its fence and the prefix of the keys that wake
-- Returns lines: status 'settled' | 'already' | 'refused' | 'gone' | 'lost', now where a time is given from now, and with
--          'refused' the record, with 'lost' the lock, which another owner has had since: then nothing is written
--
-- Asks neither for the store's state nor, mostly, for the time: it runs after every body, and needs only the claim.
-- Safe to run twice: the second time answers 'already'.

local value = redis.call('GET', KEYS[1])
local state, owner, fence, rev, lease, lost
if value then
  state, owner, fence, rev, lease, lost = string.match(value, '^%d+ (%S+) (%S+) (%d+) (%d+) (%d+) (%d+) ')
elseif ARGV[5] == '1' then
  state, owner, fence, rev, lease, lost = ARGV[4], ARGV[1], ARGV[2], ARGV[3], '0', '0'
else
  return 'gone\n0\n'
end
if owner ~= ARGV[1] or fence ~= ARGV[2] or (state ~= ARGV[4] and state ~= ARGV[8]) then
  return 'refused\n0\n' .. value
end
local now, l = ARGV[6] == '1' and now_us() or 0, nil
if KEYS[2] and state == ARGV[4] then
  l = lock_of(KEYS[2])
  if has_passed_on(l, owner, ARGV[16]) then
    return 'lost\n0\n' .. l.text
  end
end
local status = 'already'
if state == ARGV[4] then
  status = 'settled'
  local head = {ARGV[7], ARGV[8], owner, fence, rev + 1, time_of(ARGV[10], lease, now), lost,
    time_of(ARGV[11], '0', now), time_of(ARGV[12], '0', now), time_of(ARGV[13], '0', now), ARGV[9]}
  if l and l.owner == owner then
    free_lock(KEYS[2], l, KEYS[3], ARGV[17])
  end
  keep(KEYS[1], table.concat(head, ' ') .. '\n' .. ARGV[14], ARGV[15])
end
return status .. '\n' .. text(now) .. '\n'
