"""The data folder: durable records, one holder, and the memory of deletes."""

from __future__ import annotations

import pathlib
import shutil
import stat

import msgspec
import pytest

from agent.durable import write_durably
from agent.records import ContainerSpec, CopyRef, Desired, Order, Record, State
from agent.shelf import Deleted, FolderInUse, Shelf


def a_record(workload_id: str = "w") -> Record:
    """Return a record with everything set."""
    spec = ContainerSpec(image="host", command=("run",), env={"SECRET": "s"})
    order = Order(workload_id, "container", "r1", 3, Desired.RUNNING, spec)
    process = CopyRef(12, 34, "boot", "r1", ("/sys/fs/cgroup/x",))
    return Record(order, State.RUNNING, "running", process=process, runtimes=("process",), created_at=1, updated_at=2)


async def test_a_record_comes_back_as_it_was_written(tmp_path: pathlib.Path) -> None:
    """Every field, the kind of spec included; the file is the owner's alone, as it holds environment values."""
    shelf = Shelf(tmp_path)
    shelf.open("n-1")
    await shelf.save(a_record())
    assert shelf.load_records() == [a_record()]
    mode = (tmp_path / "workloads" / "w.json").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    await shelf.forget("w")
    assert shelf.load_records() == []
    shelf.close()


async def test_an_unreadable_record_is_put_aside_and_the_others_are_read(tmp_path: pathlib.Path) -> None:
    """One broken file never keeps an agent from starting."""
    shelf = Shelf(tmp_path)
    shelf.open("n-1")
    await shelf.save(a_record("good"))
    (tmp_path / "workloads" / "bad.json").write_text('{"order": 1')
    assert [r.order.id for r in shelf.load_records()] == ["good"]
    assert (tmp_path / "workloads" / "bad.bad").exists()
    shelf.close()


def test_two_agents_never_hold_one_folder(tmp_path: pathlib.Path) -> None:
    """The second is told; when the first is gone, it may."""
    first, second = Shelf(tmp_path), Shelf(tmp_path)
    first.open("n-1")
    with pytest.raises(FolderInUse, match="in use by another agent"):
        second.open("n-1")
    first.close()
    second.open("n-1")
    second.close()


def test_the_agent_id_is_that_of_the_place(tmp_path: pathlib.Path) -> None:
    """It is found again when the folder is made anew, and no other folder or node has it."""
    found = []
    for name, node_id in (("a", "n-1"), ("a", "n-1"), ("b", "n-1"), ("a", "n-2")):
        shelf = Shelf(tmp_path / name)
        found.append(shelf.open(node_id).agent_id)
        shelf.close()
        shutil.rmtree(shelf.folder)
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_a_folder_belongs_to_one_node(tmp_path: pathlib.Path) -> None:
    """Another node id would take over workloads that are not its own."""
    shelf = Shelf(tmp_path)
    identity = shelf.open("n-1")
    shelf.close()
    with pytest.raises(FolderInUse, match="belongs to node 'n-1', not 'n-2'"):
        shelf.open("n-2")
    assert shelf.open("n-1") == identity
    shelf.close()


async def test_the_memory_of_deletes_is_bounded_and_keeps_the_newest(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest are forgotten at the next start."""
    monkeypatch.setattr("agent.shelf.MAX_DELETED", 5)
    shelf = Shelf(tmp_path)
    shelf.open("n-1")
    for number in range(7):
        (tmp_path / "deleted" / f"w{number}.json").write_bytes(msgspec.json.encode(Deleted(1, number)))
    found = shelf.load_deleted()
    assert list(found) == ["w2", "w3", "w4", "w5", "w6"]
    assert not (tmp_path / "deleted" / "w0.json").exists()
    shelf.close()


def test_a_write_replaces_the_whole_file(tmp_path: pathlib.Path) -> None:
    """No reader ever sees a part, and no scratch file stays."""
    path = tmp_path / "f.json"
    write_durably(path, b"a" * 100_000)
    write_durably(path, b"b")
    assert path.read_bytes() == b"b"
    assert [p.name for p in tmp_path.iterdir()] == ["f.json"]
