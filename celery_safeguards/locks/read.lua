-- Return the time and a lock as it is stored: 'now', then its text or ''.
--
-- KEYS  lock

return text(now_us()) .. '\n' .. (redis.call('GET', KEYS[1]) or '')
