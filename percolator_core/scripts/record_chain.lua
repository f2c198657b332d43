-- Write fields of the chain's record, unless a later activation has begun.
--   KEYS    chain
--   ARGV    activation, fields (field, value) …
--   reply   "recorded" | "overtaken"

if tonumber(redis.call('HGET', KEYS[1], 'activation') or '0') > tonumber(ARGV[1]) then return 'overtaken' end
redis.call('HSET', KEYS[1], 'activation', unpack(ARGV))
return 'recorded'
