-- One flush of a front: its own pulse and those of the nodes it heard. All times are this server's.
-- KEYS  1 pulses (hash: node -> time, then packed use)   2 fronts (hash: front -> "since at")
-- ARGV  1 front id   2 gap limit (s)   3 prune after (s)   4 "1" when the front listens   5... node, age (ms), packed use
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000

local ids = {}
for i = 5, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
if #ids > 0 then
  local known = redis.call('HMGET', KEYS[1], unpack(ids))
  local sets = {}
  for n, id in ipairs(ids) do
    local at = now - tonumber(ARGV[3 + 3 * n]) / 1000
    local use = ARGV[4 + 3 * n]
    local was = known[n] and tonumber(string.sub(known[n], 1, 17))
    -- Another front may have heard the node later than we did; a time from the future is no time at all.
    if not was or was <= at or was > now then
      if use == '' and known[n] then use = string.sub(known[n], 18) end
      sets[#sets + 1] = id
      sets[#sets + 1] = string.format('%017.6f', at) .. use
    end
  end
  if #sets > 0 then redis.call('HSET', KEYS[1], unpack(sets)) end
end

if ARGV[4] == '1' then
  local since = now
  local mine = redis.call('HGET', KEYS[2], ARGV[1])
  if mine then
    local began, last = string.match(mine, '^(%S+) (%S+)$')
    last = tonumber(last)
    if last and last <= now and now - last <= tonumber(ARGV[2]) then since = tonumber(began) end
  end
  redis.call('HSET', KEYS[2], ARGV[1], string.format('%.6f %.6f', since, now))
  local all = redis.call('HGETALL', KEYS[2])
  for i = 1, #all, 2 do
    local last = tonumber(string.match(all[i + 1], ' (%S+)$'))
    if not last or now - last > tonumber(ARGV[3]) then redis.call('HDEL', KEYS[2], all[i]) end
  end
end
return #ids
