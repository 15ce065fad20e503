-- Give one parked message back, due or not. KEYS: the parked set, the parked messages. ARGV: the tag.
return unpark(KEYS[1], KEYS[2], ARGV[1])
