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
local r = stored(KEYS[2])
local is_done = r and r.state == 'done'
local fields = r and cjson.decode(r.body) or {}
local sent, known = fields.continued_by or {}, false
for _, id in ipairs(sent) do
  known = known or id == ARGV[3]
end
if ARGV[4] == 'end' then
  local is_final = is_done or (r and (r.state == 'dead' or r.state == 'quarantined'))
  if is_final and not known then
    sent[#sent + 1] = ARGV[3]
    fields.continued_by = sent
    if fields.continuing == ARGV[3] then
      fields.continuing = nil
    end
    r.body = cjson.encode(fields)
    put(KEYS[2], r, nil)
  end
  return reply('sent', now, m, '')
end
if known then
  return reply('sent', now, m, '')
end
if is_done and (fields.continuing or '') ~= '' and now < tonumber(r.lease) then
  return reply('busy', now, m, '')
end
if is_done then
  fields.continuing = ARGV[3]
  r.body, r.lease = cjson.encode(fields), text(now + tonumber(ARGV[5]))
  put(KEYS[2], r, nil)
end
return reply('go', now, m, '')
