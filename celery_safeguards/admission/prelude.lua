-- Functions that the admission scripts share. Times are the server's, in microseconds.
--
-- The meta hash:  epoch          random, made when the store is new or was wiped
--                 admit_from     nobody is admitted before: one lease after the epoch began
--                 pulse          the last time any worker was heard
--                 takeover_from  no lapsed claim is taken before
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

-- A new claim of `owner`: a fence above the last one, also where the server's clock went back or the store was wiped.
local function claim(owner, last, now, lease_us)
  local fence = text(math.max(tonumber(last or '0') + 1, now))
  return {'owner', owner, 'fence', fence, 'lease_until_us', text(now + lease_us), 'lost_us', '0'}
end

-- Write the fields in `pairs_of` and those of ARGV from i on: retention in ms (0: keep), JSON of fields (all values
-- text), JSON of times (us from now, as text). One text in place of many arguments: a client spends more on each
-- argument than the server on the whole script.
local function write(record, rev, pairs_of, now, i)
  local fields = cjson.decode(ARGV[i + 1])
  -- Above both: where an owner's copy comes along, its revision is that of the claim, and renewals have moved on since.
  fields.rev = text(math.max(tonumber(rev or '0'), tonumber(fields.rev or '0')) + 1)
  for field, value in pairs(fields) do
    pairs_of[#pairs_of + 1] = field
    pairs_of[#pairs_of + 1] = value
  end
  if ARGV[i + 2] ~= '' then
    for field, us in pairs(cjson.decode(ARGV[i + 2])) do
      pairs_of[#pairs_of + 1] = field
      pairs_of[#pairs_of + 1] = text(now + tonumber(us))
    end
  end
  redis.call('HSET', record, unpack(pairs_of))
  if ARGV[i] ~= '0' then
    redis.call('PEXPIRE', record, ARGV[i])
  else
    redis.call('PERSIST', record)
  end
end

-- A record as JSON text, '' if there is none.
local function whole(record)
  local flat = redis.call('HGETALL', record)
  if #flat == 0 then
    return ''
  end
  local fields = {}
  for n = 1, #flat, 2 do
    fields[flat[n]] = flat[n + 1]
  end
  return cjson.encode(fields)
end

-- One text of six lines, for the same reason; the last one holds no line break, JSON escapes them.
local function reply(status, now, m, found)
  return table.concat({status, text(now), m[1], m[2], m[3], found}, '\n')
end
