-- Give back whoever has stood in a line for longest. KEYS: the parked set, the parked messages, the line.
-- Returns 1, 0 if nobody stands there, or an error if the first cannot be given back: it keeps its place.
while true do
    local first = redis.call('ZPOPMIN', KEYS[3])
    if not first[1] then
        return 0
    end
    local given = unpark(KEYS[1], KEYS[2], first[1])
    if given ~= 0 then
        if given ~= 1 then
            redis.call('ZADD', KEYS[3], first[2], first[1])
        end
        return given
    end
end
