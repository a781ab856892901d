"""F77: calls to agents over TLS, and what a change of the certificate does to their connections."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator

import pytest

from scheduler.agents.client import Agents
from scheduler.domain.errors import AgentUnreachable
from scheduler.tls.credentials import ChannelCredentials, server_credentials
from scheduler.tls.files import FollowedFiles
from tests.support.certificates import Authority, needs_openssl
from tests.support.fake_agent import FakeAgent

pytestmark = needs_openssl


@pytest.fixture
def ca(tmp_path: pathlib.Path) -> Authority:
    """The CA of all."""
    return Authority(tmp_path / "ca")


@pytest.fixture
async def agent(ca: Authority, tmp_path: pathlib.Path) -> AsyncIterator[FakeAgent]:
    """An agent that serves TLS."""
    files = ca.issue(tmp_path / "agent", "agent")
    fake = await FakeAgent("n-1").start(credentials=server_credentials(FollowedFiles(files)))
    yield fake
    await fake.stop()


def client_with(folder: pathlib.Path, ca: Authority) -> Agents:
    """Return a client whose certificate lies in a folder."""
    return Agents(timeout_seconds=5, credentials=ChannelCredentials(FollowedFiles(ca.issue(folder, "front"))).current)


async def test_F77_agents_are_called_over_tls_and_not_without(
    agent: FakeAgent, ca: Authority, tmp_path: pathlib.Path
) -> None:
    """With a certificate of the CA; one of another CA, and plaintext, reach no agent."""
    with_tls = client_with(tmp_path / "front", ca)
    assert await with_tls.list(agent.node()) == []
    await with_tls.close()
    for other in (client_with(tmp_path / "other", Authority(tmp_path / "other-ca")), Agents(timeout_seconds=5)):
        with pytest.raises(AgentUnreachable):
            await other.list(agent.node())
        await other.close()


async def test_F77_an_agent_must_have_the_name_that_is_dialled(ca: Authority, tmp_path: pathlib.Path) -> None:
    """A certificate of the CA for another address is not taken for this agent's."""
    files = ca.issue(tmp_path / "agent", "agent", names="IP:10.9.8.7,DNS:elsewhere")
    fake = await FakeAgent("n-1").start(credentials=server_credentials(FollowedFiles(files)))
    client = client_with(tmp_path / "front", ca)
    with pytest.raises(AgentUnreachable):
        await client.list(fake.node())
    assert fake.calls.total() == 0
    await client.close()
    await fake.stop()


async def test_F77_new_connections_use_a_new_certificate_and_standing_ones_go_on(
    agent: FakeAgent, ca: Authority, tmp_path: pathlib.Path
) -> None:
    """A new certificate opens no new connection while the old one stands; after the agent's restart it is shown.

    The restarted agent trusts another CA only, so that nothing but the new certificate is let in.
    """
    client = client_with(tmp_path / "front", ca)
    node = agent.node()
    await client.list(node)
    other = Authority(tmp_path / "other-ca")
    other.issue(tmp_path / "front", "front")
    await client.list(node)
    assert len(agent.peers) == 1, "the connection that stood went on"
    port = int(agent.endpoint.rpartition(":")[2])
    await agent.stop()
    restarted = FakeAgent("n-1")
    files = FollowedFiles(other.issue(tmp_path / "agent-2", "agent"))
    await restarted.start(port, credentials=server_credentials(files))
    assert await _listed(client, restarted) == []
    await client.close()
    await restarted.stop()


async def _listed(client: Agents, agent: FakeAgent) -> list[object]:
    """List as soon as the restarted agent is reached; the first call may still find the old connection's end."""
    for _ in range(20):
        try:
            return list(await client.list(agent.node()))
        except AgentUnreachable:
            pass
    raise AssertionError("the restarted agent is not reached")
