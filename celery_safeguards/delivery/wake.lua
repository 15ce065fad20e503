-- A word for each message wakes one waiting worker each; more of them than there may be workers idle are of no use.
local function wake(list)
    if redis.call('LLEN', list) < 64 then
        redis.call('LPUSH', list, '1')
    end
end
