"""Limits by control groups, over folders that look like them."""

from __future__ import annotations

import pathlib

import pytest

from agent.process import cgroups
from agent.process.cgroups import Cgroups, Mount, mounts
from agent.records import Limits

ALL = frozenset({"memory", "cpu", "pids"})


def test_hierarchies_are_read_with_the_group_that_the_process_is_in(tmp_path: pathlib.Path) -> None:
    """Version 1 has one a controller, version 2 one for all; a mount may carry several controllers."""
    (tmp_path / "cgroup").write_text("4:memory:/agent.slice\n2:cpu,cpuacct:/\n1:name=systemd:/x\n0::/agent.slice\n")
    unified = tmp_path / "unified"
    (unified / "agent.slice").mkdir(parents=True)
    (unified / "agent.slice" / "cgroup.controllers").write_text("pids io\n")
    (tmp_path / "mounts").write_text(
        "proc /proc proc rw 0 0\n"
        "cgroup /cg/memory cgroup rw,memory 0 0\n"
        "cgroup /cg/cpu,cpuacct cgroup rw,nosuid,cpu,cpuacct 0 0\n"
        f"cgroup2 {unified} cgroup2 rw 0 0\n"
    )
    assert mounts(tmp_path) == [
        Mount(unified=False, controllers=frozenset({"memory"}), base=pathlib.Path("/cg/memory/agent.slice")),
        Mount(unified=False, controllers=frozenset({"cpu", "cpuacct"}), base=pathlib.Path("/cg/cpu,cpuacct")),
        Mount(unified=True, controllers=frozenset({"pids", "io"}), base=unified / "agent.slice"),
    ]


@pytest.mark.parametrize(
    ("unified", "limits", "expected"),
    [
        (
            False,
            Limits(250, 64),
            {
                "memory.limit_in_bytes": "67108864",
                "cpu.cfs_period_us": "100000",
                "cpu.cfs_quota_us": "25000",
                "pids.max": "4096",
            },
        ),
        (
            False,
            Limits(),
            {
                "memory.limit_in_bytes": "-1",
                "cpu.cfs_period_us": "100000",
                "cpu.cfs_quota_us": "-1",
                "pids.max": "4096",
            },
        ),
        (False, Limits(1, 0), {"cpu.cfs_quota_us": "1000"}),
        (True, Limits(250, 64), {"memory.max": "67108864", "cpu.max": "25000 100000", "pids.max": "4096"}),
        (True, Limits(), {"memory.max": "max", "cpu.max": "max 100000", "pids.max": "4096"}),
    ],
)
def test_limits_become_the_files_of_a_group(
    tmp_path: pathlib.Path, unified: bool, limits: Limits, expected: dict[str, str]
) -> None:
    """In the kernel's units; the least CPU quota that it takes is kept to."""
    groups = Cgroups("agent", [Mount(unified=unified, controllers=ALL, base=tmp_path)])
    (folder,) = groups.create("w", limits)
    assert folder.startswith(str(tmp_path / "fleetbeat" / "agent" / "w."))
    found = {p.name: p.read_text() for p in pathlib.Path(folder).iterdir()}
    assert expected.items() <= found.items()
    assert cgroups.entrances([folder]) == [f"{folder}/cgroup.procs"]


def test_each_copy_has_groups_of_its_own(tmp_path: pathlib.Path) -> None:
    """So nothing of an earlier copy is ever counted for a later one."""
    groups = Cgroups("agent", [Mount(unified=False, controllers=ALL, base=tmp_path)])
    assert groups.create("w", Limits()) != groups.create("w", Limits())


def test_what_is_not_limited_is_said(tmp_path: pathlib.Path) -> None:
    """An operator can see it in HealthCheck."""
    assert Cgroups("a", []).summary() == "no cgroup can be written: cpu, memory and pids are not limited"
    part = Cgroups("a", [Mount(unified=False, controllers=frozenset({"pids"}), base=tmp_path)])
    assert part.summary() == "cgroup v1: pids; not limited: memory, cpu"
    assert part.create("w", Limits())
    missing = Cgroups("a", [Mount(unified=False, controllers=ALL, base=tmp_path / "none" / "such")])
    assert missing.create("w", Limits()) == ()


def test_version_2_hands_controllers_down_and_moves_the_agent_out_of_the_way(tmp_path: pathlib.Path) -> None:
    """No process may be in a group that hands controllers on."""
    groups = Cgroups("agent", [Mount(unified=True, controllers=ALL, base=tmp_path)])
    for folder in (tmp_path, tmp_path / "fleetbeat", tmp_path / "fleetbeat" / "agent"):
        assert (folder / "cgroup.subtree_control").read_text() == "+memory +cpu +pids"
    assert groups.summary() == "cgroup v2: memory, cpu, pids"


def test_kills_for_want_of_memory_are_counted_in_either_version(tmp_path: pathlib.Path) -> None:
    """The files differ; a group that is gone counts none."""
    one, two = tmp_path / "1", tmp_path / "2"
    one.mkdir()
    two.mkdir()
    (one / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    (two / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n")
    assert cgroups.oom_kills([str(one)]) == 2
    assert cgroups.oom_kills([str(two)]) == 1
    assert cgroups.oom_kills([str(tmp_path / "gone")]) == 0
    (one / "cgroup.procs").write_text("12\n34\n")
    assert cgroups.pids([str(one), str(tmp_path / "gone")]) == {12, 34}


def test_empty_groups_of_an_agent_that_crashed_are_removed_at_the_next_start(tmp_path: pathlib.Path) -> None:
    """Those with something in them stay."""
    root = tmp_path / "fleetbeat" / "agent"
    (root / "w.1").mkdir(parents=True)
    (root / "w.2" / "in-use").mkdir(parents=True)
    Cgroups("agent", [Mount(unified=False, controllers=ALL, base=tmp_path)])
    assert [p.name for p in root.iterdir()] == ["w.2"]
