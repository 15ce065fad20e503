-- Read fields of hashes. Changes nothing.
--
-- KEYS     hashes of letters or groups
-- ARGV     names of fields; none: all of them
-- returns  for each hash an array with one value for each field, nil where it has none; of all: name, value, name ...

local found = {}
for i, key in ipairs(KEYS) do
  found[i] = #ARGV == 0 and redis.call('HGETALL', key) or redis.call('HMGET', key, unpack(ARGV))
end
return found
