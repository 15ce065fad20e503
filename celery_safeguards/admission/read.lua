-- Return records as they are stored, nil where there is none.
--
-- KEYS  records

return redis.call('MGET', unpack(KEYS))
