-- Return a record as JSON, '' if there is none.
--
-- KEYS  record

return whole(KEYS[1])
