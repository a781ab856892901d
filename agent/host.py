"""What the node has and what is used of it, by psutil."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from agent.records import Limits

_MB = 2**20
_GB = 2**30


@dataclass(frozen=True)
class Capacity:
    """What the node offers in all."""

    cpu_millicores: int
    memory_mb: int
    disk_gb: int


@dataclass(frozen=True)
class Used:
    """What is used on the node, by whomever."""

    cpu_millicores: int
    memory_mb: int
    disk_gb: int
    cpu_percent: float
    memory_percent: float
    disk_percent: float


def detect(folder: pathlib.Path, *, cpu_millicores: int = 0, memory_mb: int = 0, disk_gb: int = 0) -> Capacity:
    """Return the node's capacity; what is given (not 0) goes before what is found. The disk is the folder's."""
    return Capacity(
        cpu_millicores or len(os.sched_getaffinity(0)) * 1000,
        memory_mb or psutil.virtual_memory().total // _MB,
        disk_gb or psutil.disk_usage(str(folder)).total // _GB,
    )


def used(folder: pathlib.Path) -> Used:
    """Return what is used now; CPU is the mean since the call before."""
    cpu = psutil.cpu_percent(interval=None)
    memory = psutil.virtual_memory()
    disk = psutil.disk_usage(str(folder))
    return Used(
        cpu_millicores=round(cpu / 100 * (psutil.cpu_count() or 1) * 1000),
        memory_mb=(memory.total - memory.available) // _MB,
        disk_gb=disk.used // _GB,
        cpu_percent=cpu,
        memory_percent=memory.percent,
        disk_percent=disk.percent,
    )


def allocated(limits: Iterable[Limits]) -> Limits:
    """Return the sum of what is committed."""
    each = list(limits)
    return Limits(
        sum(one.cpu_millicores for one in each), sum(one.memory_mb for one in each), sum(one.disk_gb for one in each)
    )
