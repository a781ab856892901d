"""Ports that stay, the lock on the data folder, bounded logs."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import sys

import pytest

from scheduler.devcluster import folder as folders
from scheduler.devcluster.binaries import CannotStart
from scheduler.devcluster.folder import Folder, Layout
from scheduler.devcluster.ports import assign_ports, is_free
from scheduler.devcluster.processes import known
from tests.support.servers import free_port


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> Folder:
    """A new data folder."""
    made = Folder(tmp_path / "data")
    made.create()
    return made


def test_ports_are_free_distinct_and_below_the_ephemeral_range() -> None:
    """A port of the ephemeral range may be taken by any outgoing connection before it is used."""
    ports = assign_ports([f"p{n}" for n in range(20)], {})
    assert len(set(ports.values())) == 20
    assert all(11000 <= port < 32768 and is_free(port) for port in ports.values())


def test_recorded_ports_are_kept_where_they_are_free() -> None:
    """A restart is reachable where the last run was; only a port that is taken changes."""
    kept, lost = free_port(), free_port()
    with contextlib.closing(socket.create_server(("127.0.0.1", lost))):
        ports = assign_ports(["a", "b", "c"], {"a": kept, "b": lost})
    assert ports["a"] == kept
    assert ports["b"] not in {lost, kept}


def test_a_new_port_is_never_one_that_another_name_has_recorded() -> None:
    """A front that is not started today must find its port tomorrow."""
    recorded = {f"p{n}": free_port() for n in range(5)}
    assert assign_ports(["new"], recorded)["new"] not in recorded.values()


def test_a_wanted_port_that_is_taken_is_refused_by_number() -> None:
    """A port the user names is used or refused, never replaced."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        with pytest.raises(CannotStart, match=f"port {port} for front-1 is taken"):
            assign_ports(["front-1"], {}, {"front-1": port})


def test_the_leavings_of_closed_connections_do_not_make_a_port_taken() -> None:
    """After a quick restart old connections linger in TIME_WAIT; the port is free all the same."""
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    client = socket.create_connection(("127.0.0.1", port))
    accepted, _ = server.accept()
    accepted.close()
    client.close()
    server.close()
    assert is_free(port)


def test_a_second_up_on_the_same_folder_is_refused_with_the_pid_of_the_first(folder: Folder) -> None:
    """Two clusters on one etcd data folder would destroy it."""
    folder.lock()
    with pytest.raises(CannotStart, match=rf"in use by a running cluster \(pid {os.getpid()}\)"):
        Folder(folder.root).lock()
    folder.unlock()
    Folder(folder.root).lock()


def test_a_folder_whose_up_was_killed_is_not_held(folder: Folder) -> None:
    """The kernel gives the lock back; the pid that is still written there names nobody."""
    script = (
        "import sys, pathlib; from scheduler.devcluster.folder import Folder; "
        "Folder(pathlib.Path(sys.argv[1])).lock(); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(folder.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as up:
        assert up.stdout
        up.stdout.readline()
        holder = folder.holder()
        assert holder
        assert holder.pid == up.pid
        up.kill()
    assert folder.holder() is None
    folder.lock()


def test_layout_and_children_are_read_as_they_were_written(folder: Folder) -> None:
    """What a restart needs comes back whole; a new folder has none of it."""
    assert folder.read_layout() == Layout()
    assert folder.read_children() == {}
    folder.write_layout(Layout(4, (3, 5), {"etcd": 12000}))
    assert folder.read_layout() == Layout(4, (3, 5), {"etcd": 12000})
    me = known(os.getpid(), 2)
    assert me
    folder.write_children({"agent-1": me})
    assert folder.read_children() == {"agent-1": me}
    assert me.runs()


def test_a_damaged_file_is_named(folder: Folder) -> None:
    """The message says which file and what to do."""
    folder.path("layout.json").write_text("{")
    with pytest.raises(CannotStart, match=r"layout\.json is damaged"):
        folder.read_layout()


def test_a_pid_that_now_belongs_to_another_process_does_not_run() -> None:
    """Start time and boot are part of the name: a stranger is never signalled."""
    me = known(os.getpid())
    assert me
    stranger = type(me)(me.pid, me.start_ticks + 1, me.boot_id)
    last_boot = type(me)(me.pid, me.start_ticks, "another")
    assert not stranger.runs()
    assert not last_boot.runs()


def test_logs_are_bounded_and_writers_go_on(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full log is moved aside and emptied in place: a child that appends needs not be told."""
    monkeypatch.setattr(folders, "_LOG_BYTES_MAX", 100)
    with folder.log("etcd").open("ab", buffering=0) as child:
        child.write(b"a" * 101)
        folder.trim_logs()
        assert folder.log("etcd").stat().st_size == 0
        child.write(b"b")
    assert folder.log("etcd").read_bytes() == b"b"
    assert folder.path("logs", "etcd.log.1").read_bytes() == b"a" * 101
    assert folder.log_tail("etcd") == "b"
    assert not folder.log_tail("no-such-child")


def test_the_folder_is_readable_by_its_owner_only(folder: Folder) -> None:
    """It holds everything the cluster knows."""
    assert folder.root.stat().st_mode & 0o077 == 0
