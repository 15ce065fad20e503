-- Return a record as it is stored, '' if there is none.
--
-- KEYS  record

return redis.call('GET', KEYS[1]) or ''
