"""What decisions depend on, from the settings."""

from __future__ import annotations

from scheduler.convergence.actions import Policy
from scheduler.settings import Settings


def policy_of(settings: Settings) -> Policy:
    """Return the settings that decisions depend on."""
    return Policy(
        grace_seconds=settings.node_grace_seconds,
        reapply_base_seconds=settings.reapply_guard_seconds,
        lease_seconds=settings.node_lease_seconds,
        stop_after_seconds=settings.exclusive_stop_after_seconds,
        retry_grace_seconds=settings.retry_grace_seconds,
        orphan_after_seconds=settings.orphan_after_seconds,
    )
