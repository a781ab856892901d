"""DNS records of nodes and fronts, as they are in etcd."""

from __future__ import annotations

import asyncio
import json
import pathlib

import pytest

from scheduler.domain.errors import StoreUnavailable
from scheduler.front import presence
from scheduler.pb import fleetbeat_pb2
from scheduler.store.etcd import Etcd
from scheduler.store.kv import EtcdApi
from scheduler.store.lease import Lease
from tests.support import servers
from tests.support.fronts import Rig, eventually, front_on

NODE = "/skydns/cloud/persys/agents/genesis/n1"
FRONTS = "/skydns/local/persys/"


async def names(etcd: EtcdApi, prefix: str = "/skydns/") -> dict[str, dict[str, object]]:
    """Return the DNS records that etcd holds."""
    found, _ = await etcd.scan(prefix)
    return {kv.key: json.loads(kv.value) for kv in found}


async def moved(rig: Rig, endpoint: str) -> None:
    """Register n1 at this endpoint."""
    assert (await rig.register("n1", endpoint)).accepted


async def test_F79_the_record_of_a_node_follows_it_and_goes_with_it(etcd: EtcdApi) -> None:
    """Written with the registration, not again when nothing is new, gone with the node."""
    async with front_on(etcd) as rig:
        await moved(rig, "10.0.0.7:50051")
        assert await names(etcd) == {NODE: {"host": "10.0.0.7", "ttl": 300}}
        before = await rig.stored()
        await moved(rig, "10.0.0.7:50051")
        assert await rig.stored() == before
        await moved(rig, "10.0.0.8:50051")
        assert await names(etcd) == {NODE: {"host": "10.0.0.8", "ttl": 300}}
        await rig.fleet.RemoveNode(fleetbeat_pb2.RemoveNodeRequest(node_id="n1", force=True))
        assert await names(etcd) == {}


async def test_F79_a_record_that_somebody_removed_comes_back_with_the_next_registration() -> None:
    """Although the node's own record is as it was."""
    async with front_on() as rig:
        await moved(rig, "10.0.0.7:50051")
        await rig.put_key(NODE, b'{"host":"6.6.6.6"}')
        await moved(rig, "10.0.0.7:50051")
        assert await names(rig.parts.etcd) == {NODE: {"host": "10.0.0.7", "ttl": 300}}


async def test_F79_another_domain_takes_the_old_record_away() -> None:
    """With the next registration; without a domain there is none."""
    async with front_on() as rig:
        await moved(rig, "10.0.0.7:50051")
        for domain, expected in (("nodes.example", ["/skydns/example/nodes/genesis/n1"]), ("", [])):
            rig.parts.settings = rig.parts.settings.model_copy(update={"agents_domain": domain})
            await moved(rig, "10.0.0.7:50051")
            assert list(await names(rig.parts.etcd)) == expected


async def test_F79_a_removal_and_a_registration_at_once_leave_both_records_or_none(etcd: EtcdApi) -> None:
    """In whatever order they come."""
    async with front_on(etcd) as rig:
        for _ in range(10):
            await moved(rig, "10.0.0.7:50051")
            remove = fleetbeat_pb2.RemoveNodeRequest(node_id="n1", force=True)
            await asyncio.gather(rig.fleet.RemoveNode(remove), moved(rig, "10.0.0.9:50051"))
            stored = await rig.stored()
            assert ("/nodes/n1" in stored) == (NODE in stored)


async def both(etcd: EtcdApi, *fronts: str) -> bool:
    """Whether exactly these fronts have their two records."""
    wanted = {f"{FRONTS}{kind}/{front}" for kind in ("_persys-scheduler", "persys-scheduler") for front in fronts}
    return set(await names(etcd, FRONTS)) == wanted


async def test_F80_each_front_has_records_and_takes_them_away_when_it_stops(etcd: EtcdApi) -> None:
    """With its port; the other front's stay."""
    async with front_on(etcd, front_id="f1", domain="persys.local") as one:
        async with front_on(etcd, front_id="f2", domain="persys.local", advertise_ip="10.9.9.9", advertise_port=99):
            await eventually(lambda: both(etcd, "f1", "f2"))
            found = await names(etcd)
            assert found[f"{FRONTS}_persys-scheduler/f2"] == {"host": "10.9.9.9", "port": 99, "ttl": 300}
            assert found[f"{FRONTS}persys-scheduler/f2"] == {"host": "10.9.9.9", "ttl": 300}
            assert found[f"{FRONTS}_persys-scheduler/f1"]["port"] == one.front.grpc_port
        assert await both(etcd, "f1")


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records live for two seconds after their front."""
    monkeypatch.setattr(presence, "LEASE_SECONDS", 2)


@pytest.mark.usefixtures("short_lease")
async def test_F80_the_records_of_a_front_that_dies_end_with_their_lease(etcd: EtcdApi) -> None:
    """Nobody removes them: nobody renews the lease."""
    async with front_on(etcd, front_id="f1", domain="persys.local") as rig:
        await eventually(lambda: both(etcd, "f1"))
        rig.front._presence._revoke = _nothing  # type: ignore[method-assign] - as if it had been killed
        task, lease = rig.front._presence._task, rig.front._presence._lease
        assert task
        assert lease
        task.cancel()
        await lease.close()
        await eventually(lambda: both(etcd), 20)


async def _nothing() -> None:
    pass


@pytest.mark.usefixtures("short_lease")
async def test_F80_records_come_back_after_an_outage_of_etcd(tmp_path: pathlib.Path) -> None:
    """One that is longer than their lease."""
    server = servers.etcd(tmp_path).start()
    etcd = Etcd([server.address], timeout_seconds=0.5)
    times = {"store_probe_interval_seconds": 0.1, "store_patience_seconds": 0.4}
    try:
        async with front_on(etcd, front_id="f1", domain="persys.local", **times) as rig:
            await eventually(lambda: both(etcd, "f1"))
            first = rig.front._presence._lease
            server.kill()
            assert first
            await first.lost.wait()
            server.start()
            await eventually(lambda: bound_to(etcd, rig.front._presence._lease, other_than=first), 30)
    finally:
        await etcd.close()
        server.stop()


async def bound_to(etcd: EtcdApi, lease: Lease | None, *, other_than: Lease) -> bool:
    """Whether both records are there, under this new lease; an etcd that is not back yet says no."""
    if lease is None or lease is other_than or not lease.id:
        return False
    try:
        found, _ = await etcd.scan(FRONTS)
    except StoreUnavailable:
        return False
    return [kv.lease for kv in found] == [lease.id, lease.id]
