"""etcd: keys, codec, transactions and fences, watch caches, repositories."""
