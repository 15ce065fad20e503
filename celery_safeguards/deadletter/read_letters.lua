-- Read fields of letters. Changes nothing.
--
-- KEYS     hashes of letters
-- ARGV     names of fields
-- returns  for each letter an array with one value for each field; nil where it has none

local found = {}
for i, key in ipairs(KEYS) do
  found[i] = redis.call('HMGET', key, unpack(ARGV))
end
return found
