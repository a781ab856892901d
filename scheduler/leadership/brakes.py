"""The brake as a process sees it: which nodes fell silent together, in a shard or in a zone.

A shard is a random part of the fleet, so what strikes everything shows in each of them. What
strikes one zone may be too small a share of every shard; so the nodes of a zone, over all
shards, are weighed by themselves as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from scheduler.convergence.liveness import Brake, brake
from scheduler.domain.brake import ZONE_LABELS, BrakeRelease
from scheduler.domain.node import Node
from scheduler.domain.shard import shard_of
from scheduler.leadership.shards import current_map, members_of
from scheduler.settings import Settings
from scheduler.store.cache import Cache
from scheduler.store.keys import BRAKES, NODES


def zone_of(node: Node) -> str:
    """Return the zone of a node; blank: it carries no label that says."""
    return next((node.labels[label] for label in ZONE_LABELS if node.labels.get(label)), "")


def shard_nodes(cache: Cache, node_id: str) -> list[Node]:
    """Return all nodes of the shard that drives this node."""
    nodes = cache.all(NODES)
    shards = current_map(cache)
    if shards is None:
        return []
    members = members_of(shard_of(node_id, shards), nodes, shards)
    return [record for member in members if (record := nodes[member].record)]


def brake_of(cache: Cache, settings: Settings, node: Node, now: datetime) -> Brake:
    """Return the brake that concerns this node: its shard's and its zone's, unless an operator has released it."""
    if released(cache, node.node_id, now):
        return Brake()
    held = _brake(settings, shard_nodes(cache, node.node_id), "shard")
    zone = zone_of(node)
    if node.node_id in held.held or not zone:
        return held
    everybody = (one.record for one in cache.all(NODES).values())
    in_zone = _brake(settings, [one for one in everybody if one and zone_of(one) == zone], f"zone {zone}")
    return in_zone if node.node_id in in_zone.held else held


def held_in(cache: Cache, settings: Settings, shard: int, now: datetime) -> Brake:
    """Return what is held of the nodes of a shard, by its own brake or by those of their zones."""
    shards = current_map(cache)
    if shards is None:
        return Brake()
    nodes = cache.all(NODES)
    lost = (record for m in members_of(shard, nodes, shards) if (record := nodes[m].record) and not record.is_ready)
    found = [brake for node in lost if node.node_id in (brake := brake_of(cache, settings, node, now)).held]
    members = frozenset(members_of(shard, nodes, shards))
    held = frozenset(node_id for brake in found for node_id in brake.held) & members
    return Brake(held, found[0].reason) if found else Brake()


def held_by_shard(
    cache: Cache, settings: Settings, by_shard: Mapping[int, Sequence[Node]], now: datetime
) -> dict[int, frozenset[str]]:
    """Return what is held of the nodes of each of these shards, which must be all; as `held_in`, for all at once."""
    everybody = [node for nodes in by_shard.values() for node in nodes]
    if all(node.is_ready for node in everybody):
        return {}
    by_zone: dict[str, list[Node]] = {}
    for node in everybody:
        by_zone.setdefault(zone_of(node), []).append(node)
    by_zone.pop("", None)
    zones = [_brake(settings, nodes, f"zone {zone}").held for zone, nodes in by_zone.items()]
    in_zones = frozenset().union(*zones)
    return {
        shard: _brake(settings, nodes, "shard").held | (in_zones & {node.node_id for node in nodes})
        for shard, nodes in by_shard.items()
        if release_of(cache, shard, now) is None
    }


def release_of(cache: Cache, shard: int, now: datetime) -> BrakeRelease | None:
    """Return the release of a shard's brake that is in force."""
    if not cache.mirrors(BRAKES):
        return None
    found = cache.get(BRAKES, str(shard)).record
    return found if found and found.is_valid(now) else None


def released(cache: Cache, node_id: str, now: datetime) -> BrakeRelease | None:
    """Return the release that is in force for the shard of this node."""
    shards = current_map(cache)
    return release_of(cache, shard_of(node_id, shards), now) if shards else None


def _brake(settings: Settings, nodes: Iterable[Node], of_what: str) -> Brake:
    return brake(
        list(nodes),
        share=settings.brake_share,
        min_nodes=settings.brake_min_nodes,
        window_seconds=settings.node_lease_seconds + settings.node_grace_seconds,
        of_what=of_what,
    )
