-- Decides whether a cycle, or a chunk of one, may run: one hash for each loop and shard.
--
--   term, slot, generation   the cycle that was admitted last
--   seen_term, seen_generation   the newest that any message carried: older messages are stale
--   chunks, claimed, ended, failed   how far that cycle is; claimed is a list like ",0,3,"
--   lease, lease_until       how long its workers may be silent, in ms; until when it holds the shard
--   finished_slot, finished_at   the last cycle whose chunks all went well
--
-- It saves work. Safety comes from the fence in etcd, so losing this hash is harmless.

local key = KEYS[1]
local op, term, slot, generation = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function number(field)
  return tonumber(redis.call('HGET', key, field) or '-1')
end

local function is_current()
  return number('term') == term and number('slot') == slot and number('generation') == generation
end

local function extend()
  redis.call('HSET', key, 'lease_until', now + number('lease'))
end

local function admit_cycle(chunks, lease, keep)
  -- A newer map is a newer world, also where terms begin anew: in an etcd that was restored.
  local newer = generation > number('seen_generation') and term < number('seen_term')
  if number('seen_generation') > generation
      or (not newer and number('seen_term') > term)
      or (number('term') == term and number('slot') > slot) then
    return 'stale'
  end
  redis.call('HSET', key, 'seen_term', ARGV[2], 'seen_generation', ARGV[4])
  redis.call('PEXPIRE', key, keep)
  if number('slot') == slot then
    return 'duplicate'
  end
  if number('lease_until') > now then
    return 'busy'
  end
  redis.call('HSET', key, 'term', ARGV[2], 'slot', ARGV[3], 'generation', ARGV[4], 'chunks', chunks,
    'claimed', ',', 'ended', 0, 'failed', 0, 'lease', lease, 'lease_until', now + lease)
  return 'ok'
end

local function admit_chunk(chunk)
  if not is_current() then
    return 'stale'
  end
  local claimed = redis.call('HGET', key, 'claimed')
  if string.find(claimed, ',' .. chunk .. ',', 1, true) then
    return 'duplicate'
  end
  redis.call('HSET', key, 'claimed', claimed .. chunk .. ',')
  extend()
  return 'ok'
end

local function finish_chunk(failed)
  if not is_current() then
    return 'stale'
  end
  local all_failed = redis.call('HINCRBY', key, 'failed', failed)
  if redis.call('HINCRBY', key, 'ended', 1) < number('chunks') then
    return 'ok'
  end
  redis.call('HSET', key, 'lease_until', 0)
  if all_failed > 0 then
    return 'failed'
  end
  redis.call('HSET', key, 'finished_slot', ARGV[3], 'finished_at', now)
  return 'done'
end

if op == 'admit_cycle' then
  return admit_cycle(ARGV[5], ARGV[6], ARGV[7])
elseif op == 'admit_chunk' then
  return admit_chunk(ARGV[5])
elseif op == 'finish_chunk' then
  return finish_chunk(ARGV[5])
elseif not is_current() then
  return 'stale'
elseif op == 'renew' then
  if number('ended') < number('chunks') then -- a renewal may arrive after the end
    extend()
  end
elseif op == 'release' then
  redis.call('HSET', key, 'lease_until', 0)
end
return 'ok'
