"""Fleet.AcceptStore: an operator vouches that an emptied etcd is to be used as it is."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from scheduler.convergence.mode import Mode
from scheduler.domain.errors import InvalidInput, Refused
from scheduler.front.parts import FrontParts
from scheduler.pb import fleetbeat_pb2 as pb
from scheduler.store.cluster import accept_store

_LOOKS = 50
_LOOK_SECONDS = 0.1

_log = structlog.get_logger("scheduler.front.acceptance")


class Acceptance:
    """A method of fleetbeat.v1.Fleet, named as on the wire."""

    def __init__(self, parts: FrontParts) -> None:
        """Take the front's parts."""
        self._parts = parts

    async def AcceptStore(self, request: pb.AcceptStoreRequest, _context: Any) -> pb.AcceptStoreResponse:  # noqa: N802 - the wire's name
        """Leave recovery without a backup: what etcd has lost stays lost, and agents keep what they run."""
        parts, modes = self._parts, self._parts.modes
        if request.cluster_id != parts.cluster_id:
            raise InvalidInput("cluster_id", f"must be {parts.cluster_id}, to confirm which cluster is meant")
        await modes.look()
        if modes.mode is not Mode.RECOVERY:
            raise Refused(f"the control plane is in {modes.mode} mode: only in recovery is there anything to accept")
        _log.warning("an operator accepts the store as it is", reason=modes.reason)
        settings = parts.settings
        await accept_store(
            parts.store,
            parts.cluster_id,
            epoch_base=modes.epoch_floor,
            shard_count=settings.shard_count,
            hash_name=settings.shard_hash,
            now=parts.now(),
        )
        for _ in range(_LOOKS):  # the cache has to show it, too
            await modes.look()
            if modes.writable:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        return pb.AcceptStoreResponse(cluster_id=parts.cluster_id, mode=modes.mode)
