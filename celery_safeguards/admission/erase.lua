-- Take the result and the texts of a record that is over; all else of it stays.
--
-- KEYS  record
-- Returns  'erased' | 'nothing' (there is none to take) | 'under_way' | 'absent'
--
-- In one step, and by field: what is written of the same record meanwhile (that something was sent, for an id) stays.
-- The steps of dead work stay as well: they hold back a second effect.
-- Safe to run twice: the second time finds nothing.

local r = stored(KEYS[1])
if not r then
  return 'absent'
end
if r.state ~= 'done' and r.state ~= 'dead' and r.state ~= 'quarantined' then
  return 'under_way'
end
local fields, status = cjson.decode(r.body), 'nothing'
for name in pairs(fields.failure or {}) do
  if name ~= 'kind' then
    fields.failure, status = {kind = fields.failure.kind}, 'erased'
    break
  end
end
if r.state == 'done' then
  local is_stored = (fields.result_form or 'stored') == 'stored'
  if is_stored and (fields.result or '') ~= '' and fields.result ~= 'null' then
    fields.result, fields.result_form, status = '', 'withheld', 'erased'
  end
  if next(fields.steps or {}) then
    fields.steps, status = {}, 'erased'
  end
end
if status == 'erased' then
  r.body = cjson.encode(fields)
  put(KEYS[1], r, nil)
end
return status
