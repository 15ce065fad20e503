-- Give back whoever has stood in a line for longest. KEYS: the parked set, the parked messages, the line.
-- Returns 1, or 0 if nobody stands there.
while true do
    local first = redis.call('ZPOPMIN', KEYS[3])
    if not first[1] then
        return 0
    end
    if unpark(KEYS[1], KEYS[2], first[1]) == 1 then
        return 1
    end
end
