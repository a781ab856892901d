"""`fleetbeat agent`: options, variables, and what is refused."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from click.testing import CliRunner

from agent import main
from agent.main import agent_command
from agent.options import Address, Options, endpoint_of, parse_address


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """The options with which the agent would have been run."""
    found: list[Options] = []

    def run(options: Options, **_logs: Any) -> None:
        found.append(options)

    monkeypatch.setattr(main, "run", run)
    return found


def test_every_option_reaches_the_agent(taken: list[Options], tmp_path: pathlib.Path) -> None:
    """As flags."""
    arguments = [
        "--node-id", "n-1", "--server", "a:1,[::1]:2", "--listen", "0.0.0.0:0", "--advertise", "me", "--data",
        str(tmp_path), "--label", "zone=a", "--label", "disk=", "--cpu-millicores", "1500", "--memory-mb", "64",
        "--disk-gb", "3", "--allow-host-processes", "--no-docker", "--stop-grace", "1.5", "--output-max-bytes",
        "5000", "--stop-workloads-on-exit",
    ]  # fmt: skip
    result = CliRunner().invoke(agent_command, arguments)
    assert result.exit_code == 0, result.output
    assert taken == [
        Options(
            node_id="n-1",
            servers=("a:1", "[::1]:2"),
            listen=Address("0.0.0.0", 0),  # noqa: S104 - parsed, not bound
            advertise="me",
            data=tmp_path,
            labels={"zone": "a", "disk": ""},
            cpu_millicores=1500,
            memory_mb=64,
            disk_gb=3,
            allow_host_processes=True,
            docker=False,
            stop_grace_seconds=1.5,
            output_most_bytes=5000,
            stop_workloads_on_exit=True,
        )
    ]


def test_every_option_has_a_variable(taken: list[Options]) -> None:
    """FLEETBEAT_AGENT_ and its name."""
    variables = {
        "NODE_ID": "n-2", "SERVER": "b:2", "LISTEN": "127.0.0.1:9", "LABELS": "a=1,b=2", "DATA": "/d",
        "ALLOW_HOST_PROCESSES": "true", "DOCKER": "no", "STOP_GRACE": "3", "CPU_MILLICORES": "7",
    }  # fmt: skip
    result = CliRunner().invoke(agent_command, [], env={f"FLEETBEAT_AGENT_{k}": v for k, v in variables.items()})
    assert result.exit_code == 0, result.output
    (options,) = taken
    assert (options.node_id, options.servers, str(options.listen)) == ("n-2", ("b:2",), "127.0.0.1:9")
    assert (options.labels, options.data) == ({"a": "1", "b": "2"}, pathlib.Path("/d"))
    assert (options.allow_host_processes, options.docker) == (True, False)
    assert (options.stop_grace_seconds, options.cpu_millicores) == (3.0, 7)


def test_the_defaults_let_nobody_else_in(taken: list[Options]) -> None:
    """Only this host reaches the agent, no host processes, workloads outlive it."""
    assert CliRunner().invoke(agent_command, ["--node-id", "n"]).exit_code == 0
    (options,) = taken
    assert str(options.listen) == "127.0.0.1:50051"
    assert not options.allow_host_processes
    assert not options.stop_workloads_on_exit
    assert options.data == pathlib.Path(".fleetbeat/agents/n").absolute()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--node-id", "a/b"], "'--node-id'"),
        (["--node-id", ""], "must not be blank"),
        (["--server", ""], "at least one host:port"),
        (["--server", "localhost"], "'localhost' must be host:port"),
        (["--server", "a:1,b:0"], "'b:0': the port must be a number from 1 to 65535"),
        (["--server", "a:b:1"], "must be host:port"),
        (["--listen", "0.0.0.0:65536"], "the port must be a number from 0 to 65535"),
        (["--advertise", "a b:1"], "'a b:1' must be host:port"),
        (["--label", "zone"], "'zone' must be name=value"),
        (["--label", "a b=c"], "must be name=value"),
        (["--label", "fleetbeat.runtime.docker=true"], "are set by the agent itself"),
        (["--label", "a=" + "x" * 257], "at most 256"),
        ([x for n in range(65) for x in ("--label", f"l{n}=1")], "at most 64"),
        (["--cpu-millicores", "-1"], "'--cpu-millicores'"),
        (["--memory-mb", "many"], "'--memory-mb'"),
        (["--stop-grace", "601"], "'--stop-grace'"),
        (["--output-max-bytes", "10"], "'--output-max-bytes'"),
        (["--log-format", "xml"], "'--log-format'"),
        (["--log-level", "loud"], "'--log-level'"),
    ],
)
def test_a_wrong_value_is_refused_with_the_option_and_what_is_allowed(
    taken: list[Options], arguments: list[str], text: str
) -> None:
    """Exit code 2, and the agent does not start."""
    result = CliRunner().invoke(agent_command, arguments)
    assert (result.exit_code, taken) == (2, [])
    assert text in result.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("advertise", "bound", "expected"),
    [
        ("", "10.0.0.1:50051", "10.0.0.1:50051"),
        ("node.example", "0.0.0.0:50051", "node.example:50051"),
        ("node.example:7", "0.0.0.0:50051", "node.example:7"),
        ("fd00::1", "0.0.0.0:50051", "[fd00::1]:50051"),
        ("[fd00::1]:7", "0.0.0.0:50051", "[fd00::1]:7"),
        ("", "0.0.0.0:50051", "127.0.0.1:50051"),
    ],
)
def test_the_advertised_address_is_one_that_can_be_called(advertise: str, bound: str, expected: str) -> None:
    """Given, else where the agent listens, else this host's address on the way to the control plane."""
    assert endpoint_of(advertise, parse_address(bound), "127.0.0.1:8085") == expected
