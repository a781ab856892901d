"""Fixtures that every level of tests may use."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

from tests.support import beds, servers

# How long an example takes says how busy the machine is.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that was skipped for want of a bed which is required here; its marks name the beds it needs."""
    report = yield
    needs = {mark.name for mark in item.iter_markers()} & beds.REQUIRED
    if report.skipped and needs and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"the test bed {', '.join(needs)} is required here; skipped: {report.longreprtext}"
    return report


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """One etcd for the session. Tests that kill it start their own; tests that write use a prefix of their own."""
    with servers.running(servers.etcd(tmp_path_factory.mktemp("etcd"))) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """One Redis for the session. Tests that kill it start their own."""
    with servers.running(servers.redis(tmp_path_factory.mktemp("redis"))) as server:
        yield server


@pytest.fixture
def etcd_prefix(request: pytest.FixtureRequest) -> str:
    """A key prefix that no other test uses."""
    return "/t/" + "".join(c if c.isalnum() else "-" for c in request.node.name)[:80] + f"-{id(request)}"
