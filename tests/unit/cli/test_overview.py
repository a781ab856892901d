"""The overview, help, configuration, and what ends the process how."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest
import yaml

from scheduler.cli import lazy
from scheduler.cli.lazy import Lazy, LazyGroup
from scheduler.cli.main import cli
from scheduler.cli.node import node
from scheduler.cli.options import common_options
from scheduler.cli.workload import workload
from scheduler.settings import Settings
from tests.unit.cli.conftest import Run

COMMANDS = ("up", "down", "apply", "status", "summary", "node", "workload", "config", "front", "agent", "version")
OWN = ("apply", "status", "summary", "node", "workload", "config", "front", "version")


def test_the_overview_is_complete(run: Run) -> None:
    """Every command has its line."""
    ended = run("--help")
    assert ended.code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in ended.out


def test_the_overview_imports_nothing_big() -> None:
    """No gRPC, no pydantic, no Celery: so it is quick, and an agent loads no control plane by it."""
    code = (
        "import sys; from scheduler.cli.main import main; sys.argv = ['fleetbeat', '--help']; main();"
        "print(sorted({'grpc', 'pydantic', 'celery', 'rich', 'yaml', 'numpy'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("name", OWN)
def test_every_command_explains_itself_with_an_example(run: Run, name: str) -> None:
    """--help has the options that every command takes."""
    ended = run(name, "--help")
    assert ended.code == 0
    assert "--server" in ended.out
    assert "Example" in ended.out or name in ("node", "workload", "version")


@pytest.mark.parametrize("name", [*(("node", c) for c in node.lazy), *(("workload", c) for c in workload.lazy)])
def test_every_command_below_explains_itself_with_an_example(run: Run, name: tuple[str, str]) -> None:
    """Groups' commands, too."""
    ended = run(*name, "--help")
    assert ended.code == 0
    assert "Example" in ended.out


@pytest.mark.parametrize(
    ("group", "names"), [(cli, ("up", "down", *OWN)), (node, tuple(node.lazy)), (workload, tuple(workload.lazy))]
)
def test_the_overviews_lines_are_the_commands_own(group: LazyGroup, names: tuple[str, ...]) -> None:
    """The table of lazy commands has the right place for each, and names them as they name themselves."""
    context = click.Context(group)
    for name in names:
        pytest.importorskip(group.lazy[name].target.partition(":")[0])
        command = group.get_command(context, name)
        assert command is not None
        assert command.name == name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("statsu",), "No such command 'statsu'. Did you mean 'status'?"),
        (("xyz",), "No such command 'xyz'"),
        (("workload", "lst"), "Did you mean 'ls'?"),
        (("status", "extra"), "unexpected extra argument"),
        (("status", "-o", "xml"), "'xml' is not one of"),
        (("node", "show"), "Missing argument 'ID'"),
    ],
)
def test_wrong_use_is_exit_code_1(run: Run, arguments: tuple[str, ...], said: str) -> None:
    """2 means "placed nothing", so that wrong use must not end with it."""
    ended = run(*arguments)
    assert ended.code == 1
    assert said in ended.err


def test_version(run: Run) -> None:
    """As a command and as an option."""
    assert run("version").out.startswith("fleetbeat ")
    assert run("--version").out == run("version").out


def test_config_shows_every_setting_with_its_source(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the environment, or the default; secrets masked."""
    monkeypatch.setenv("GRPC_PORT", "9085")
    monkeypatch.setenv("REDIS_PASSWORD", "hunter2")
    monkeypatch.setenv("FLEETBEAT_BROKER_URL", "redis://:hunter2@b:6379/1")
    ended = run("config", "-o", "json")
    assert ended.code == 0
    data = json.loads(ended.out)
    assert len(data) == len(Settings.model_fields)
    assert data["GRPC_PORT"] == {"value": "9085", "source": "env"}
    assert data["SCHEDULER_RECONCILE_INTERVAL"] == {"value": "5s", "source": "default"}
    assert data["REDIS_PASSWORD"] == {"value": "***", "source": "env"}
    assert data["FLEETBEAT_BROKER_URL"]["value"] == "redis://***@b:6379/1"
    assert yaml.safe_load(run("config", "-o", "yaml").out) == data
    assert "hunter2" not in run("config").out


def test_config_with_wrong_settings_tells_all_of_them(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1, one line each."""
    monkeypatch.setenv("GRPC_PORT", "0")
    monkeypatch.setenv("REDIS_DB", "x")
    ended = run("config")
    assert ended.code == 1
    assert ended.err.startswith("Error: wrong settings:\nGRPC_PORT=0: ")
    assert "REDIS_DB=x: " in ended.err


def test_a_front_with_wrong_settings_does_not_start(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same message, and exit code 1."""
    pytest.importorskip("scheduler.front.server")
    monkeypatch.setenv("GRPC_PORT", "0")
    ended = run("front")
    assert ended.code == 1
    assert "GRPC_PORT=0: " in ended.err


@click.command("own")
@click.option("--data")
@click.option("--other", default="o")
def own_command(data: str | None, other: str) -> None:
    """A command of another part, with a --data of its own."""
    click.echo(f"{data} {other}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["own"], "None o"),
        (["--data", "a", "own"], "a o"),
        (["own", "--data", "b"], "b o"),
        (["--data", "a", "own", "--data", "b"], "b o"),
    ],
)
def test_options_before_a_command_of_another_part_reach_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    """`fleetbeat --data D up` is `fleetbeat up --data D`; what stands after wins."""
    monkeypatch.setattr(lazy.importlib, "import_module", lambda _name: sys.modules[__name__])
    group = common_options(LazyGroup("x", callback=lambda: None, lazy={"own": Lazy("here:own_command", "Own.")}))
    group.main(arguments, standalone_mode=False)
    assert capsys.readouterr().out == f"{said}\n"
