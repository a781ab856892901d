"""Stored ports, as placement reserves them and as agents are told them."""

from __future__ import annotations

import pytest

from scheduler.agents.request import apply_request
from scheduler.domain.port import parse_port
from scheduler.domain.workload import WorkloadSpec
from scheduler.placement.request import host_port


@pytest.mark.parametrize(
    ("text", "parsed", "reserved"),
    [
        ("8080:80/tcp", (8080, 80, "tcp"), "8080/tcp"),
        ("8080:80", (8080, 80, "tcp"), "8080/tcp"),
        ("53:53/UDP", (53, 53, "udp"), "53/udp"),
        ("127.0.0.1:8080:80", (8080, 80, "tcp"), "8080/tcp"),
        ("0:80/tcp", (0, 80, "tcp"), ""),
        (":80", (0, 80, "tcp"), ""),
        ("80", (0, 80, "tcp"), ""),
        ("http", (0, 0, "tcp"), ""),
        ("", (0, 0, "tcp"), ""),
    ],
)
def test_what_is_published_is_what_was_reserved(text: str, parsed: tuple[int, int, str], reserved: str) -> None:
    """One reading of a port, whoever wrote the record; none raises."""
    assert parse_port(text) == parsed
    assert host_port(text) == reserved
    spec = WorkloadSpec(id="w", type="container", image="i", ports=(text,))
    sent = apply_request(spec, desired="Running", epoch=1).spec.container.ports[0]
    assert (sent.host_port, sent.container_port, sent.protocol) == parsed
