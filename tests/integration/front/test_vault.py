"""F78: fronts as processes whose certificates come from Vault.

No Vault runs here: a small HTTP server speaks the three calls that are used, and signs with a real CA.
"""

from __future__ import annotations

import pathlib

import pytest

from scheduler.pb import control_pb2 as pb
from tests.support.certificates import Authority, dated, files_in, needs_openssl
from tests.support.fake_vault import TOKEN, FakeVault, vault_of
from tests.support.fronts import eventually
from tests.support.servers import Server, free_port
from tests.support.tls_front import CALL_SECONDS, TlsFront, control, ending, settings_of

pytestmark = [pytest.mark.slow, needs_openssl]


def settings(fake: FakeVault, folder: pathlib.Path) -> dict[str, str]:
    """Return what sends a front to this Vault."""
    return settings_of(files_in(folder)) | {
        "PERSYS_VAULT_ENABLED": "true",
        "PERSYS_VAULT_ADDR": fake.address,
        "PERSYS_VAULT_TOKEN": TOKEN,
        "PERSYS_VAULT_RETRY_INTERVAL": "1s",
    }


async def test_F78_two_fronts_that_share_a_folder_serve_with_one_certificate_from_vault(
    tmp_path: pathlib.Path, etcd_server: Server, etcd_prefix: str, redis_server: Server
) -> None:
    """Started at once with no files: one certificate is issued, both serve with it, no log has the token."""
    ca = Authority(tmp_path / "ca")
    client = ca.issue(tmp_path / "client", "gateway")
    with vault_of(ca) as fake:
        fronts = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            more = settings(fake, tmp_path / "tls")
            fronts.append(TlsFront(tmp_path / name, etcd_server, etcd_prefix, redis_server, more))
        with ending(*(front.run("front", "scheduler.cli", "front") for front in fronts)):
            for front in fronts:
                await eventually(lambda front=front: "front listens" in front.log, 40)
                assert front.names_shown(client) == "persys-scheduler"
                async with front.channel(client) as channel:
                    await control(channel).ListNodes(pb.ListNodesRequest(), timeout=CALL_SECONDS)
        assert len(fake.issued) == 1
        assert all(TOKEN not in front.log and "PRIVATE KEY" not in front.log for front in fronts)


async def test_F78_while_vault_is_away_files_serve_and_are_renewed_when_it_is_back(
    tmp_path: pathlib.Path, etcd_server: Server, etcd_prefix: str, redis_server: Server
) -> None:
    """An old certificate at the start, no Vault: the front serves with it. With Vault: a new one, without a restart."""
    ca = Authority(tmp_path / "ca")
    client = ca.issue(tmp_path / "client", "gateway")
    ca.issue(
        tmp_path / "tls", "by-hand", names="DNS:persys-scheduler,IP:127.0.0.1", dates=(dated(-36_000), dated(3600))
    )
    port = free_port()
    with vault_of(ca, port) as gone:
        more = settings(gone, tmp_path / "tls")
    front = TlsFront(tmp_path, etcd_server, etcd_prefix, redis_server, more).start()
    assert front.process
    with ending(front.process):
        assert front.names_shown(client) == "by-hand"
        assert "no certificate was issued" in front.log
        with vault_of(ca, port) as fake:
            await eventually(lambda: front.names_shown(client) == "persys-scheduler", 20)
            assert len(fake.issued) == 1
        assert 'persys_scheduler_certificate_issues_total{result="issued"} 1.0' in front.metrics()
    assert TOKEN not in front.log
