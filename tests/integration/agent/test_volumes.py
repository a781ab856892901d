"""Volumes that an agent keeps, with processes of the host: who finds them, and when their data goes."""

from __future__ import annotations

import pathlib
import signal
from typing import Any

import pytest

from scheduler.pb import agent_pb2 as pb
from tests.integration.agent.conftest import Node
from tests.support.agent_process import order
from tests.support.waiting import eventually

WRITE = 'echo "$1" >> "$FLEETBEAT_VOLUME_MY_DATA/f"; sleep 600'


def volume(**fields: Any) -> pb.ManagedVolumeSpec:
    """Describe a volume."""
    return pb.ManagedVolumeSpec(**{"name": "my-data", **fields})


def folder(node: Node, name: str = "local_my-data") -> pathlib.Path:
    """Return where the data of a volume is."""
    return node.data / "volumes" / name


async def write(
    node: Node, text: str, *volumes: pb.ManagedVolumeSpec, workload_id: str = "w", revision: str = "r1", epoch: int = 1
) -> None:
    """Run a workload that writes into its volume."""
    command = ("sh", "-c", WRITE, "sh", text)
    await node.run(order(workload_id, *command, revision=revision, epoch=epoch, volumes=volumes or [volume()]))
    name = volumes[0].volume_id if volumes and volumes[0].volume_id else "local_my-data"
    await eventually(lambda: text in content(node, name), 10, f"{workload_id} writes {text}")


def content(node: Node, name: str = "local_my-data") -> str:
    """Return what was written into a volume."""
    path = folder(node, name) / "f"
    return path.read_text() if path.exists() else ""


async def gone(node: Node, workload_id: str = "w", kept: tuple[str, ...] = (), epoch: int = 1) -> None:
    """Delete a workload; the agent answers when it is gone."""
    answer = await node.client.delete(workload_id, epoch=epoch, kept_volumes=kept)
    assert answer.message == "deleted"


async def test_F54_an_agent_announces_the_driver_that_it_has(node: Node) -> None:
    """Only local; what else the node can mount, its labels say."""
    assert list(node.front.registrations[-1].capabilities.supported_storage_drivers) == ["local"]


async def test_F81_a_volume_outlives_revisions_and_restarts_of_the_agent(node: Node) -> None:
    """And goes with the workload, whose policy is Delete."""
    await write(node, "one")
    await write(node, "two", revision="r2")
    await node.signal(signal.SIGKILL)
    await node.start()
    await write(node, "three", revision="r3")
    assert content(node) == "one\ntwo\nthree\n"
    await gone(node)
    assert not folder(node).exists()


@pytest.mark.parametrize(("policy", "kept"), [("Retain", ()), ("Delete", ("local:my-data",))])
async def test_F81_retained_data_stays_and_is_found_again(node: Node, policy: str, kept: tuple[str, ...]) -> None:
    """By the policy, or by the word of the control plane: the workload only leaves for a while."""
    await write(node, "one", volume(retain_policy=policy))
    await gone(node, kept=kept)
    await write(node, "two", volume(retain_policy=policy), epoch=2)
    assert content(node) == "one\ntwo\n"


async def test_F81_shared_data_goes_with_the_last_workload_that_has_it(node: Node) -> None:
    """Not with the first, whatever its policy."""
    await write(node, "one")
    await write(node, "two", workload_id="other")
    await gone(node)
    assert content(node) == "one\ntwo\n"
    await gone(node, "other")
    assert not folder(node).exists()


async def test_F81_the_data_of_a_volume_that_a_new_revision_lacks_is_removed(node: Node) -> None:
    """As soon as that revision runs."""
    await write(node, "one")
    await node.run(order("w", "sleep", "600", revision="r2"))
    await eventually(lambda: not folder(node).exists(), 10, "the data is gone")


async def test_F82_a_disk_has_a_folder_by_its_id(node: Node) -> None:
    """So two disks of one name are two."""
    await write(node, "one", volume(volume_id="disk-1", retain_policy="Retain"))
    await write(node, "two", volume(volume_id="disk-2", retain_policy="Retain"), workload_id="other")
    assert (content(node, "disk-1"), content(node, "disk-2")) == ("one\n", "two\n")


async def test_F81_a_driver_that_the_node_lacks_is_a_failure_of_storage(node: Node) -> None:
    """With the code by which the control plane releases the claim."""
    answer = await node.client.apply(order("w", volumes=[volume(driver="nfs")]))
    assert not answer.applied
    status = await node.front.reported("w", "Failed")
    assert status.reason.code == "STORAGE_PROVISION_FAILED"
    assert "nfs" in status.message


async def test_F81_a_volume_that_cannot_be_made_is_a_failure_of_storage(node: Node) -> None:
    """Told with what is in the way."""
    (node.data / "volumes").write_text("in the way")
    await node.client.apply(order("w", volumes=[volume()]))
    status = await node.front.reported("w", "Failed")
    assert (status.reason.code, "its volumes cannot be made" in status.message) == ("STORAGE_PROVISION_FAILED", True)


async def test_9_25_the_log_of_an_agent_has_no_secrets_of_an_order(node: Node) -> None:
    """Neither of one that runs nor of one that is refused."""
    secret = "hunter2-is-not-to-be-seen"  # noqa: S105 - a secret of nobody
    await node.run(order("w", env={"TOKEN": secret}))
    await node.client.apply(order("bad", "/no/such/program", env={"TOKEN": secret}))
    await node.front.reported("bad", "Failed")
    await gone(node)
    assert secret not in node.agent.log
