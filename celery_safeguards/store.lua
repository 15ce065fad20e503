-- Functions that scripts share: the store's time, and the store's own state. Times are the server's, in microseconds.
--
-- The meta hash:  epoch          random, made when the store is new or was wiped
--                 admit_from     nobody is admitted before: one lease after the epoch began
--                 pulse          the last time any worker was heard
--                 takeover_from  no lapsed claim is taken before
--                 away_from      the last time anybody was heard before the last outage
--
-- Every worker is heard at least each third of a lease. A pulse older than half a lease means that the store was away
-- from all of them: their leases may have lapsed although they live, so nobody takes over for one lease from now.

local function now_us()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

local function text(number)
  return string.format('%.0f', number)
end

local function meta(key, now, lease_us, candidate, heard)
  local m = redis.call('HMGET', key, 'epoch', 'admit_from', 'takeover_from', 'pulse', 'away_from')
  if not m[1] then
    local from = text(now + lease_us)
    redis.call('HSET', key, 'epoch', candidate, 'admit_from', from, 'takeover_from', from, 'pulse', text(now))
    return {candidate, from, from}
  end
  if heard then
    local silent = now - tonumber(m[4])
    if silent > lease_us / 2 then
      m[3], m[5] = text(now + lease_us), m[4]
      redis.call('HSET', key, 'pulse', text(now), 'takeover_from', m[3], 'away_from', m[5])
    elseif silent > lease_us / 12 then
      redis.call('HSET', key, 'pulse', text(now))
    end
  end
  return m
end

-- One text of six lines: a client spends more on each element of an answer than the server on the script. A record,
-- which has line breaks of its own, comes last.
local function reply(status, now, m, found)
  return table.concat({status, text(now), m[1], m[2], m[3], found}, '\n')
end
