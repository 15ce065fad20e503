-- Functions that the admission scripts share. Times are the server's, in microseconds.
--
-- The meta hash:  epoch          random, made when the store is new or was wiped
--                 admit_from     nobody is admitted before: one lease after the epoch began
--                 pulse          the last time any worker was heard
--                 takeover_from  no lapsed claim is taken before
--
-- Every worker is heard at least each third of a lease. A pulse older than half a lease means that the store was away
-- from all of them: their leases may have lapsed although they live, so nobody takes over for one lease from now.
--
-- A record is one text: a line of what scripts compare and set, then a body that is the writer's own (ledger/record.py).
-- One value is written in half the time of a hash with its expiry, and that time is the server's for all clients.

local function now_us()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

local function text(number)
  return string.format('%.0f', number)
end

local function meta(key, now, lease_us, candidate, heard)
  local m = redis.call('HMGET', key, 'epoch', 'admit_from', 'takeover_from', 'pulse')
  if not m[1] then
    local from = text(now + lease_us)
    redis.call('HSET', key, 'epoch', candidate, 'admit_from', from, 'takeover_from', from, 'pulse', text(now))
    return {candidate, from, from}
  end
  if heard then
    local silent = now - tonumber(m[4])
    if silent > lease_us / 2 then
      m[3] = text(now + lease_us)
      redis.call('HSET', key, 'pulse', text(now), 'takeover_from', m[3])
    elseif silent > lease_us / 12 then
      redis.call('HSET', key, 'pulse', text(now))
    end
  end
  return m
end

local HEAD = '^(%d+) (%S+) (%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)\n(.*)$'

-- A stored text in its parts. A newer format has none of them, and is nobody's here.
local function parts_of(value)
  local r = {text = value}
  r.format, r.state, r.owner, r.fence, r.rev, r.lease, r.lost, r.began, r.due, r.doubt, r.asking, r.body =
    string.match(value, HEAD)
  return r
end

-- A record in its parts, nil if there is none.
local function stored(key)
  local value = redis.call('GET', key)
  return value and parts_of(value)
end

-- Set a text; retention in ms, '0': for ever, nil: as it stands.
local function keep(key, value, retention_ms)
  if not retention_ms then
    redis.call('SET', key, value, 'KEEPTTL')
  elseif retention_ms == '0' then
    redis.call('SET', key, value)
  else
    redis.call('SET', key, value, 'PX', retention_ms)
  end
  return value
end

-- Write a record's parts with its next revision, and return the text.
local function put(key, r, retention_ms)
  r.rev = text(tonumber(r.rev) + 1)
  local head = {r.format, r.state, r.owner, r.fence, r.rev, r.lease, r.lost, r.began, r.due, r.doubt, r.asking}
  return keep(key, table.concat(head, ' ') .. '\n' .. r.body, retention_ms)
end

-- A time as a writer gives it: '' as it stands, '+us' from now, else itself.
local function time_of(given, stands, now)
  if given == '' then
    return stands
  elseif string.byte(given) == 43 then
    return text(now + tonumber(given))
  end
  return given
end

-- Lay a write over a record. ARGV from i on: format, state, asking, then the times lease_until, series_began,
-- not_before and doubt, the body, and retention in ms.
local function lay(r, i, now)
  r.format, r.state, r.asking = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  r.lease, r.began = time_of(ARGV[i + 3], r.lease, now), time_of(ARGV[i + 4], r.began, now)
  r.due, r.doubt = time_of(ARGV[i + 5], r.due, now), time_of(ARGV[i + 6], r.doubt, now)
  r.body = ARGV[i + 7]
end

-- A record that nobody has written yet.
local function blank()
  return {owner = '-', fence = '0', rev = '0', lease = '0', lost = '0', began = '0', due = '0', doubt = '0'}
end

-- Give a record a new claim: a fence above the last one, also where the server's clock went back or the store was wiped.
local function claim(r, owner, now, lease_us)
  r.owner, r.fence = owner, text(math.max(tonumber(r.fence) + 1, now))
  r.lease, r.lost = text(now + lease_us), '0'
end

-- One text of six lines: a client spends more on each element of an answer than the server on the script. A record,
-- which has line breaks of its own, comes last.
local function reply(status, now, m, found)
  return table.concat({status, text(now), m[1], m[2], m[3], found}, '\n')
end
