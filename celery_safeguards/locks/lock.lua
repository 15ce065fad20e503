-- Functions of locks. A lock is one text: a line of what scripts compare and set, then who holds it, as JSON.
--
--   format owner fence lease_until since reserved_for reserved_until
--
-- The owner is a token of one acquisition, '-' while nobody holds it. The fence is max(last + 1, server time): it never
-- goes back, and the text outlives its lease by a day for its sake. A released lock goes to whoever waits longest, with
-- a lease of a moment: woken, they find it theirs, and nobody overtakes them. For one who must take it together with a
-- claim it is only kept for that moment.

local LOCK = '^(%d+) (%S+) (%d+) (%d+) (%d+) (%S+) (%d+)\n(.*)$'
local KEPT_US = 86400000000
local RESERVED_US = 2000000
local WAKE_MS = 10000

-- A lock in its parts; one that nobody has held yet has fence '0'. `text` is nil where none is stored.
local function lock_of(key)
  local value = redis.call('GET', key)
  if not value then
    return {owner = '-', fence = '0', lease = '0', since = '0', next = '-', next_until = '0', holder = '{}'}
  end
  local l = {text = value}
  l.format, l.owner, l.fence, l.lease, l.since, l.next, l.next_until, l.holder = string.match(value, LOCK)
  return l
end

local function put_lock(key, l, now)
  l.text = '1 ' .. l.owner .. ' ' .. l.fence .. ' ' .. l.lease .. ' ' .. l.since .. ' ' .. l.next .. ' ' .. l.next_until ..
    '\n' .. l.holder
  redis.call('SET', key, l.text, 'PXAT', text((math.max(tonumber(l.lease), now) + KEPT_US) / 1000))
end

-- Until when `owner` may not have the lock; nil if it may now. `m` is the store's own state.
local function barred_until(l, owner, now, m)
  local until_us = 0
  if l.owner == owner then
    return nil
  elseif l.owner ~= '-' then
    until_us = tonumber(l.lease)
    if until_us <= now then
      -- Lapsed. If it ran when the store went away, its owner could not renew it, and may. One that had lapsed before is
      -- nobody's: else who asks once in a while would find the store silent each time, and wait for ever.
      until_us = until_us > tonumber(m[5] or '0') and tonumber(m[3]) or 0
    end
  elseif not l.text then
    -- Never held, or lost with the store: then its owner is about to write it back.
    until_us = tonumber(m[2])
  elseif l.next ~= '-' and l.next ~= owner then
    until_us = tonumber(l.next_until)
  end
  return until_us > now and until_us or nil
end

-- Give the lock to `owner`, who may have it; taken once more, it is the same claim with a fresh lease.
local function take_lock(key, l, owner, lease_us, holder, now)
  if l.owner ~= owner then
    l.owner, l.fence, l.since = owner, text(math.max(tonumber(l.fence) + 1, now)), text(now)
    l.next, l.next_until, l.holder = '-', '0', holder
  end
  l.lease = text(now + lease_us)
  put_lock(key, l, now)
end

-- The place of an owner in the line: 'since heard_until give|keep holder'.
local PLACE = '^(%d+) (%d+) (%S+) (.*)$'

-- Give the lock to who has waited longest of those who were heard lately, or keep it for them; false if nobody was.
local function pass_on(key, l, waiting, waiting_key, wake_prefix, now)
  local first, first_since, first_way, first_holder
  for n = 1, #waiting, 2 do
    local since, heard_until, way, holder = string.match(waiting[n + 1], PLACE)
    if tonumber(heard_until) < now then
      redis.call('HDEL', waiting_key, waiting[n])
    elseif not first or tonumber(since) < first_since then
      first, first_since, first_way, first_holder = waiting[n], tonumber(since), way, holder
    end
  end
  if not first then
    return false
  end
  local fence = '0'
  if first_way == 'give' then
    redis.call('HDEL', waiting_key, first)
    take_lock(key, l, first, RESERVED_US, first_holder, now)
    fence = l.fence
  else
    l.next, l.next_until = first, text(now + RESERVED_US)
    put_lock(key, l, now)
  end
  redis.call('RPUSH', wake_prefix .. first, fence)
  redis.call('PEXPIRE', wake_prefix .. first, WAKE_MS)
  return true
end

-- Free the lock; whoever waits has it next. Mostly nobody does: then the time is not asked for, and the text is kept as
-- long as it was to be.
local function free_lock(key, l, waiting_key, wake_prefix)
  l.owner, l.lease, l.next, l.next_until = '-', '0', '-', '0'
  local waiting = redis.call('HGETALL', waiting_key)
  if #waiting == 0 or not pass_on(key, l, waiting, waiting_key, wake_prefix, now_us()) then
    local head = '1 - ' .. l.fence .. ' 0 ' .. l.since .. ' - 0\n'
    redis.call('SET', key, head .. l.holder, 'KEEPTTL')
  end
end

-- Renew the locks from KEYS[first] on, for each of which ARGV has from i on: owner, fence ('0' whatever it is), lease us,
-- holder, epoch. Returns the fence of each, '0' for one that is not its owner's. One that the store has lost is written
-- back, but only into another epoch than the owner's: in the same one it was released. Of two that are written back, one
-- was late before the store was lost: the higher fence has it, whoever comes first. Once the pause is over, neither.
local function renew_locks(first, i, now, m)
  local fences = {}
  for n = first, #KEYS do
    local key, owner, fence, l = KEYS[n], ARGV[i], ARGV[i + 1], lock_of(KEYS[n])
    local is_lost = not l.text or (now < tonumber(m[2]) and tonumber(l.fence) < tonumber(fence))
    if is_lost and fence ~= '0' and m[1] ~= ARGV[i + 4] then
      l.owner, l.fence, l.since, l.holder = owner, fence, fence, ARGV[i + 3]
    end
    if l.owner == owner and (fence == '0' or l.fence == fence) then
      l.lease = text(now + tonumber(ARGV[i + 2]))
      put_lock(key, l, now)
      fences[#fences + 1] = l.fence
    else
      fences[#fences + 1] = '0'
    end
    i = i + 5
  end
  return fences
end

-- Whether somebody else than `owner` has the lock, or has had it since `fence` was given; '0': it is not known.
local function has_passed_on(l, owner, fence)
  return (l.owner ~= '-' and l.owner ~= owner) or (fence ~= '0' and tonumber(l.fence) > tonumber(fence))
end
