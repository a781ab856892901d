"""Who sends the cycles, which cycle may write, and which shard is whose."""
