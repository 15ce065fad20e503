-- Find what should have come back to its queue long ago.
-- KEYS: the index, unacked, the parked set, the parked messages. ARGV: how long ago, in seconds; how many of each.
-- Returns, the oldest first: 'unacknowledged' or 'parked', the tag, by how many seconds it is over, the message.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1000000
local latest = string.format('%.6f', now - tonumber(ARGV[1]))
local found = {}
for _, place in ipairs({ { 'unacknowledged', 1, 2 }, { 'parked', 3, 4 } }) do
    local due = redis.call('ZRANGEBYSCORE', KEYS[place[2]], '-inf', latest, 'WITHSCORES', 'LIMIT', 0, tonumber(ARGV[2]))
    for i = 1, #due, 2 do
        local message = redis.call('HGET', KEYS[place[3]], due[i])
        if message then
            found[#found + 1] = { place[1], due[i], string.format('%.6f', now - tonumber(due[i + 1])), message }
        end
    end
end
return found
