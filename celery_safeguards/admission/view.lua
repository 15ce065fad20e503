-- Tell the store's epoch and pauses; with '1', declare a new store: nobody can be running, so nobody waits.
--
-- KEYS  meta
-- ARGV  lease us, candidate epoch, '1' to declare the store new
-- Returns  {now, epoch, admit_from, takeover_from}

local now = now_us()
local m = meta(KEYS[1], now, tonumber(ARGV[1]), ARGV[2], false)
if ARGV[3] == '1' then
  redis.call('HSET', KEYS[1], 'admit_from', '0', 'takeover_from', '0', 'pulse', text(now))
  return {text(now), m[1], '0', '0'}
end
return {text(now), m[1], m[2], m[3]}
