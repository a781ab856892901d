-- Keep outcomes of looks at workloads: the last one of each under its own key, all in one stream.
-- KEYS: the stream, then the key of each outcome's workload.
-- ARGV: seconds to keep, entries of the stream; then for each outcome its JSON and one of:
--   "anew" (keep it), "said" (keep it unless the last one says the same), "end" (and the workload is gone).
-- The time is Redis's, for many processes write here.

local function last_of(key)
  if redis.call('TYPE', key).ok ~= 'string' then return nil end
  local fine, found = pcall(cjson.decode, redis.call('GET', key))
  return fine and type(found) == 'table' and found or nil
end

local function says_the_same(a, b)
  return a.action == b.action and a.success == b.success and (a.reason or '') == (b.reason or '')
end

local ttl, most, added = ARGV[1], ARGV[2], 0
for i = 2, #KEYS do
  local text, kind = ARGV[2 * i - 1], ARGV[2 * i]
  local new, last = cjson.decode(text), last_of(KEYS[i])
  if kind ~= 'said' or not last or not says_the_same(last, new) then
    redis.call('XADD', KEYS[1], 'MAXLEN', '=', most, '*', 'data', text)
    added = added + 1
    if kind == 'end' then
      redis.call('DEL', KEYS[i])
    elseif not last or tostring(last.attemptedAt) <= new.attemptedAt then
      redis.call('SET', KEYS[i], text, 'EX', ttl)
    end
  end
end
if added > 0 then
  -- Each push renews the stream's own time to live, so old entries must go by their age.
  local oldest = (redis.call('TIME')[1] - ttl) * 1000
  redis.call('XTRIM', KEYS[1], 'MINID', '=', string.format('%.0f', oldest))
  redis.call('EXPIRE', KEYS[1], ttl)
end
return added
