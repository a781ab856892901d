"""Volumes that this node keeps: a folder each, which outlives the copies that use it.

The only driver is `local`. A container gets the folder mounted; a process of the host cannot be
given a mount, so it is told the path in a variable. When a workload is removed, the data of its
volumes goes with it, unless the volume is to be retained, another workload here uses it, or the
control plane says that it is still needed.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import structlog

from agent.records import Code, ContainerSpec, Failure, Order, Volume

if TYPE_CHECKING:
    from agent.shelf import Shelf

log = structlog.get_logger(__name__)

LOCAL = "local"
_NOT_IN_A_NAME = re.compile(r"[^A-Z0-9_]")
_MODE = 0o777
"""A container may run as any user; the folder above is the agent's own, so that nobody else of the node gets here."""


class VolumeUsers:
    """Which workloads of this node have which volumes."""

    def __init__(self) -> None:
        """Know of none."""
        self.lock = asyncio.Lock()
        """Held by whoever makes or removes folders."""
        self._by_workload: dict[str, frozenset[str]] = {}

    def use(self, workload_id: str, volumes: Iterable[Volume]) -> None:
        """Note what a workload has."""
        self._by_workload[workload_id] = frozenset(volume.id for volume in volumes)
        if not self._by_workload[workload_id]:
            del self._by_workload[workload_id]

    def keep(self, volume: Volume) -> bool:
        """Say whether the data of a volume that one workload has no more stays."""
        return volume.retained or any(volume.id in ids for ids in self._by_workload.values())


def volumes_of(order: Order) -> tuple[Volume, ...]:
    """Return the volumes of an order."""
    return order.spec.volumes if isinstance(order.spec, ContainerSpec) else ()


def foreign_driver(order: Order) -> Failure | None:
    """Say which volume this node cannot provide, if any."""
    for volume in volumes_of(order):
        if volume.driver != LOCAL:
            text = f"volume {volume.name!r} needs the storage driver {volume.driver}; this agent has only {LOCAL}"
            return Failure(Code.STORAGE_PROVISION_FAILED, text)
    return None


def mount_path(volume: Volume) -> str:
    """Return where a container finds a volume."""
    return volume.mount_path or f"/volumes/{volume.name}"


def variables(shelf: Shelf, volumes: Sequence[Volume]) -> dict[str, str]:
    """Return the variables that tell a process of the host where its volumes are."""
    return {
        f"FLEETBEAT_VOLUME_{_NOT_IN_A_NAME.sub('_', v.name.upper())}": str(shelf.volume_folder(v.id)) for v in volumes
    }


def joined(known: Sequence[Volume], wanted: Sequence[Volume]) -> tuple[Volume, ...]:
    """Return all of both; what is wanted now says how a volume is."""
    return (*without(known, wanted), *wanted)


def without(known: Sequence[Volume], others: Sequence[Volume]) -> tuple[Volume, ...]:
    """Return those that are not among the others."""
    ids = {volume.id for volume in others}
    return tuple(volume for volume in known if volume.id not in ids)


def provide(shelf: Shelf, volumes: Sequence[Volume]) -> None:
    """Make the folders that are missing; raises OSError."""
    for volume in volumes:
        folder = shelf.volume_folder(volume.id)
        shelf.volumes.mkdir(mode=0o700, exist_ok=True)
        if not folder.exists():
            folder.mkdir()
            folder.chmod(_MODE)


def remove(shelf: Shelf, volumes: Iterable[Volume]) -> None:
    """Remove the data of these volumes.

    What cannot be removed, such as files of a container's root under an agent that is not root, is
    left and logged: the workload must not stay for ever because of it.
    """
    for volume in volumes:
        folder = shelf.volume_folder(volume.id)
        try:
            if folder.exists():
                shutil.rmtree(folder)
        except OSError as error:
            log.error("volume_not_removed", volume=volume.id, folder=str(folder), error=str(error))  # noqa: TRY400 - the text says it all
