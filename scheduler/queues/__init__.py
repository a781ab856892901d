"""Celery: configuration, messages, admission of cycles, publishing. One queue a shard."""
