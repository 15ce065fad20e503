-- Return a record's fields and values, none if there is no record.
--
-- KEYS  record

return redis.call('HGETALL', KEYS[1])
