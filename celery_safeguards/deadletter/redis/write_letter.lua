-- Write a letter if it is still the one that was read, count it in its group, and have it found by its terms.
--
-- KEYS[1]  hash of the letter: version, letter (JSON), state, task, kind, group (that it is counted in),
--          terms (that it is found by)
-- KEYS[2]  sorted set of all letters, score = last failure in seconds
-- KEYS[3]  sorted set of all groups, score = last failure in seconds
-- KEYS[4]  sorted set of the letters that are over, score = since when in seconds
-- KEYS[5]  hash of its group, see `change_group.lua`
-- KEYS[6]  sorted set of its group's letters
-- KEYS     then, if it was counted in a group when it was read: that group's hash, and the set of its letters
-- KEYS     then sorted sets of terms, score as above: first of those that it is found by, last of those no longer
-- ARGV[1]  version of this write, unique to it
-- ARGV[2]  the letter as JSON   ARGV[3] state   ARGV[4] task   ARGV[5] kind
-- ARGV[6]  score                ARGV[7] the letter's stored name
-- ARGV[8]  the version that was read; '': there was no letter
-- ARGV[9]  fingerprint          ARGV[10] what the group is, as JSON
-- ARGV[11] hour of the failure; '': the letter only changes its state
-- ARGV[12] how many hours a group remembers
-- ARGV[13] since when it is over, in seconds; '': it is not
-- ARGV[14] all its terms, as text   ARGV[15] how many sets of terms it is in   ARGV[16] how many it leaves
-- ARGV[17] release of the failure; '': not known   ARGV[18] how many releases a group remembers
-- returns  1: written (also when this very write was made before: the answer was lost)   0: it has changed meanwhile

local version, old_state, old_group = unpack(redis.call('HMGET', KEYS[1], 'version', 'state', 'group'))
if version == ARGV[1] then
  return 1
end
if (version or '') ~= ARGV[8] then
  return 0
end
redis.call('ZADD', KEYS[2], ARGV[6], ARGV[7])
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'letter', ARGV[2], 'state', ARGV[3],
  'task', ARGV[4], 'kind', ARGV[5], 'group', ARGV[9], 'terms', ARGV[14])
if ARGV[13] == '' then
  redis.call('ZREM', KEYS[4], ARGV[7])
else
  redis.call('ZADD', KEYS[4], ARGV[13], ARGV[7])
end

local dropped = #KEYS - tonumber(ARGV[16])
for i = dropped - tonumber(ARGV[15]) + 1, dropped do
  redis.call('ZADD', KEYS[i], ARGV[6], ARGV[7])
end
for i = dropped + 1, #KEYS do
  redis.call('ZREM', KEYS[i], ARGV[7])
end

if old_group then
  redis.call('HINCRBY', KEYS[7], 'letters:' .. old_state, -1)
  if old_group ~= ARGV[9] then
    redis.call('ZREM', KEYS[8], ARGV[7])
  end
end
redis.call('HINCRBY', KEYS[5], 'letters:' .. ARGV[3], 1)
redis.call('ZADD', KEYS[6], ARGV[6], ARGV[7])

local has_died = ARGV[11] ~= ''
local first, last, status = unpack(redis.call('HMGET', KEYS[5], 'first', 'last', 'status'))
if has_died or not first then
  if not first or tonumber(ARGV[6]) < tonumber(first) then
    redis.call('HSET', KEYS[5], 'first', ARGV[6], 'first_release', ARGV[17])
  end
  if not last or tonumber(ARGV[6]) >= tonumber(last) then
    redis.call('HSET', KEYS[5], 'last', ARGV[6], 'head', ARGV[10])
    redis.call('ZADD', KEYS[3], ARGV[6], ARGV[9])
  end
end
if has_died and ARGV[17] ~= '' then
  local field, at = 'release:' .. ARGV[17], tonumber(ARGV[6])
  local failures, since, till = string.match(redis.call('HGET', KEYS[5], field) or '', '^(%d+) (%S+) (%S+)$')
  if not failures then
    failures, since, till = 0, ARGV[6], ARGV[6]
  end
  since, till = at < tonumber(since) and ARGV[6] or since, at > tonumber(till) and ARGV[6] or till
  redis.call('HSET', KEYS[5], field, string.format('%d %s %s', failures + 1, since, till))
  if failures == 0 then
    local releases = {}
    local stored = redis.call('HGETALL', KEYS[5])
    for i = 1, #stored, 2 do
      if stored[i]:sub(1, 8) == 'release:' then
        releases[#releases + 1] = {stored[i], tonumber(string.match(stored[i + 1], '%S+$'))}
      end
    end
    table.sort(releases, function(a, b) return a[2] < b[2] or (a[2] == b[2] and a[1] < b[1]) end)
    for i = 1, #releases - tonumber(ARGV[18]) do
      redis.call('HDEL', KEYS[5], releases[i][1])
    end
  end
end
if has_died then
  redis.call('HINCRBY', KEYS[5], 'failures', 1)
  if status == 'resolved' then
    redis.call('HSET', KEYS[5], 'status', 'open', 'reopened', ARGV[6], 'reopened_release', ARGV[17])
  end
  if redis.call('HINCRBY', KEYS[5], 'hour:' .. ARGV[11], 1) == 1 then
    local hours = {}
    for _, field in ipairs(redis.call('HKEYS', KEYS[5])) do
      if field:sub(1, 5) == 'hour:' then
        hours[#hours + 1] = tonumber(field:sub(6))
      end
    end
    table.sort(hours)
    for i = 1, #hours - tonumber(ARGV[12]) do
      redis.call('HDEL', KEYS[5], 'hour:' .. string.format('%d', hours[i]))
    end
  end
end
return 1
