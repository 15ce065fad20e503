-- A record is one text: a line of what scripts compare and set, then a body that is the writer's own (ledger/record.py).
-- One value is written in half the time of a hash with its expiry, and that time is the server's for all clients.

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
