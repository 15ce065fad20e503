-- A word for each message wakes one waiting worker each; more of them than there may be workers idle are of no use, and
-- an old one is of none: whoever waited then has asked since. So queues that are used once leave nothing behind.
local function wake(list)
    if redis.call('LLEN', list) < 64 then
        redis.call('LPUSH', list, '1')
        redis.call('EXPIRE', list, 5)
    end
end
