"""DNS records: their keys, as CoreDNS's etcd plugin looks them up, and their JSON."""

from __future__ import annotations

import json
import socket
from typing import NamedTuple
from unittest import mock

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.domain.dns import front_records, is_any, is_loopback, node_name, node_record, node_record_id
from scheduler.domain.ids import ID_PATTERN
from scheduler.domain.node import Node
from scheduler.front.presence import advertised
from scheduler.settings import SettingsError, load
from scheduler.store.keys import DNS

EVERYWHERE = "0.0.0.0"  # noqa: S104 - nothing is bound to it


class Address(NamedTuple):
    """What psutil tells of an interface, as far as it is asked."""

    family: int
    address: str


@pytest.mark.parametrize(
    ("node_id", "shard_key", "domain", "key"),
    [
        ("node-1", "genesis", "agents.persys.cloud", "/skydns/cloud/persys/agents/genesis/node-1"),
        ("node-1", "eu.west", "x", "/skydns/x/west/eu/node-1"),
        ("a.b", "genesis", "x.y", "/skydns/y/x/genesis/a.b"),
        ("Node_1", "Genesis", "x.y", "/skydns/y/x/genesis/Node_1"),
    ],
)
def test_F79_the_key_of_a_node_is_its_name_backwards(node_id: str, shard_key: str, domain: str, key: str) -> None:
    """The node's id stays in one piece."""
    assert DNS.key(node_record_id(node_id, node_name(node_id, shard_key, domain))) == key


@pytest.mark.parametrize(
    "name", ["", "node-1", "other.genesis.x", "node-1.", "node-1..x", "node-1.a/b", "node-1.x/../y"]
)
def test_F79_a_name_that_is_not_of_the_node_leads_to_no_record(name: str) -> None:
    """A record of the reference system may say what it likes."""
    assert node_record_id("node-1", name) == ""


@given(st.from_regex(ID_PATTERN, fullmatch=True), st.from_regex(ID_PATTERN, fullmatch=True))
def test_F79_two_nodes_never_share_a_record(one: str, other: str) -> None:
    """Nor is the record of one below that of another."""
    first, second = (node_record_id(i, node_name(i, "genesis", "agents.x")) for i in (one, other))
    assert first.startswith("x/agents/genesis/")
    assert first.count("/") == 3
    assert (first == second) == (one == other)


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [("10.0.0.7:50051", "10.0.0.7"), ("[fd00::7]:50051", "fd00::7"), ("agent.example:50051", "agent.example")],
)
def test_F79_a_record_leads_to_the_agent(endpoint: str, host: str) -> None:
    """As JSON of the reference system."""
    record = node_record(Node(node_id="n", agent_endpoint=endpoint))
    assert record
    assert json.loads(record.to_json()) == {"host": host, "ttl": 300}
    assert node_record(Node(node_id="n")) is None


def test_F80_a_front_has_a_service_and_an_address() -> None:
    """Each below the scheduler's domain, under its own name."""
    found = {
        DNS.key(i): json.loads(r.to_json()) for i, r in front_records("persys.local", "f1", "10.0.0.1", 8085).items()
    }
    assert found == {
        "/skydns/local/persys/_persys-scheduler/f1": {"host": "10.0.0.1", "port": 8085, "ttl": 300},
        "/skydns/local/persys/persys-scheduler/f1": {"host": "10.0.0.1", "ttl": 300},
    }


@pytest.mark.parametrize(
    ("bound", "expected"),
    [("10.1.1.1", "10.1.1.1"), ("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("::1", "::1"),
     (EVERYWHERE, "10.0.0.5"), ("::", "10.0.0.5"), ("", "10.0.0.5")],
)  # fmt: skip
def test_F80_a_front_is_found_where_it_listens(bound: str, expected: str) -> None:
    """Bound to all addresses: at the first that others can reach."""
    there = {
        "lo": [Address(socket.AF_INET, "127.0.0.1")],
        "eth0": [Address(socket.AF_INET6, "fe80::1"), Address(socket.AF_INET, "10.0.0.5")],
        "eth1": [Address(socket.AF_INET, "10.0.0.6")],
    }
    with mock.patch.object(psutil, "net_if_addrs", return_value=there):
        assert advertised(bound) == expected
    with mock.patch.object(psutil, "net_if_addrs", return_value={"lo": there["lo"]}):
        assert advertised(EVERYWHERE) == ""


def test_F80_what_is_an_address_of_its_own() -> None:
    """By the address, not by its spelling."""
    assert is_loopback("127.9.9.9")
    assert not is_loopback("example")
    assert is_any("0:0:0:0:0:0:0:0")
    assert not is_any("example")


@pytest.mark.parametrize("variable", ["DOMAIN", "AGENTS_DISCOVERY_DOMAIN"])
@pytest.mark.parametrize(
    "bad", ["a..b", ".a", "-a.b", "a_b", "a/b", "a b", "*.a", "x" * 64, ".".join(["abcdefghi"] * 21)]
)
def test_F80_a_domain_that_is_none_is_refused_at_start(
    monkeypatch: pytest.MonkeyPatch, variable: str, bad: str
) -> None:
    """By the name of the variable."""
    monkeypatch.setenv(variable, bad)
    with pytest.raises(SettingsError, match=rf"{variable}.*a domain name, or - for none"):
        load()


def test_F80_no_domain_and_any_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hyphen switches the records off; capitals and the last dot do not matter."""
    monkeypatch.setenv("DOMAIN", "-")
    monkeypatch.setenv("AGENTS_DISCOVERY_DOMAIN", "Agents.Example.")
    assert (load().domain, load().agents_domain) == ("", "agents.example")
    monkeypatch.setenv("SCHEDULER_ADVERTISE_IP", "here")
    with pytest.raises(SettingsError, match=r"SCHEDULER_ADVERTISE_IP.*an IP address"):
        load()
