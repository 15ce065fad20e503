-- Say that what follows a final record is about to be sent for a task id, or has been: after a success links, chain and
-- chord, after a failure the errbacks.
--
-- KEYS  meta, record
-- ARGV  lease us, candidate epoch, task id, 'begin' | 'end', us to keep the right to send
-- Returns lines: status, now, epoch, admit_from, takeover_from, ''; the status of 'begin' is
--          'go' | 'sent' (for this id, before) | 'busy' (somebody sends, for any id); of 'end' always 'sent'
--
-- A sender that dies leaves its right. Safe to run twice, but for 'begin' within its own time, which answers 'busy'.

local now, lease_us = now_us(), tonumber(ARGV[1])
local m = meta(KEYS[1], now, lease_us, ARGV[2], true)
local r = redis.call('HMGET', KEYS[2], 'state', 'continued_by', 'continuing', 'lease_until_us')
local is_done = r[1] == 'done'
local sent = (r[2] and r[2] ~= '') and cjson.decode(r[2]) or {}
local known = false
for _, id in ipairs(sent) do
  known = known or id == ARGV[3]
end
if ARGV[4] == 'end' then
  local is_final = is_done or r[1] == 'dead' or r[1] == 'quarantined'
  if is_final and not known then
    sent[#sent + 1] = ARGV[3]
    redis.call('HSET', KEYS[2], 'continued_by', cjson.encode(sent), 'continuing', '')
    redis.call('HINCRBY', KEYS[2], 'rev', 1)
  end
  return reply('sent', now, m, '')
end
if known then
  return reply('sent', now, m, '')
end
if is_done and (r[3] or '') ~= '' and now < tonumber(r[4] or '0') then
  return reply('busy', now, m, '')
end
if is_done then
  redis.call('HSET', KEYS[2], 'continuing', ARGV[3], 'lease_until_us', text(now + tonumber(ARGV[5])))
  redis.call('HINCRBY', KEYS[2], 'rev', 1)
end
return reply('go', now, m, '')
