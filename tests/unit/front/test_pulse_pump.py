"""The pulse pump: what is heard goes to Redis with its age, and waits while Redis is away."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from scheduler.front import pulse_pump as module
from scheduler.front.pulse_pump import PulsePump
from scheduler.pb import control_pb2 as pb
from scheduler.telemetry.pulses import Heard, Pulses, Usage, Use
from scheduler.telemetry.redis import TelemetryUnavailable

USE = Use(cpu_used_millicores=1)


class FakePulses(Pulses):
    """Takes flushes, or does not answer."""

    def __init__(self) -> None:
        """Start up."""
        super().__init__(None, gap_limit_seconds=1)
        self.up = True
        self.flushes: list[tuple[dict[str, Heard], bool]] = []
        self.usage: list[Usage] = []
        self.left: list[str] = []

    def _check(self) -> None:
        if not self.up:
            raise TelemetryUnavailable

    async def flush(self, front_id: str, heard: Mapping[str, Heard], *, listening: bool = True) -> None:  # noqa: ARG002
        """Take pulses."""
        self._check()
        self.flushes.append((dict(heard), listening))

    async def flush_usage(self, samples: Sequence[Usage]) -> None:
        """Take usage."""
        self._check()
        self.usage += samples

    async def leave(self, front_id: str) -> None:
        """Take a farewell."""
        self._check()
        self.left.append(front_id)


def sample(workload_id: str, cpu: float = 1.0) -> pb.WorkloadUsageSnapshot:
    """Describe a usage sample."""
    return pb.WorkloadUsageSnapshot(workload_id=workload_id, cpu_percent=cpu, source="x" * 100)


async def test_a_flush_takes_the_newest_of_each_node_and_says_that_the_front_listens() -> None:
    """The age is small, the use is the last one told; nothing is sent twice; an empty flush is a pulse, too."""
    pulses = FakePulses()
    pump = PulsePump(pulses, "f", listening=lambda: True)
    pump.heard("n1", USE)
    pump.heard("n1", None)
    assert len(pump) == 1
    assert await pump.flush()
    assert await pump.flush()
    (first, listening), (second, _) = pulses.flushes
    assert listening
    assert (first["n1"].use, second) == (USE, {})
    assert 0 <= first["n1"].age_seconds < 1


async def test_pulses_wait_while_redis_is_away_and_keep_their_age() -> None:
    """What could not be sent is sent later; something newer is not replaced by it, but its use is kept."""
    pulses = FakePulses()
    pump = PulsePump(pulses, "f", listening=lambda: True)
    pump.heard("old", USE)
    pump.heard("both", USE)
    pulses.up = False
    assert not await pump.flush()
    await asyncio.sleep(0.02)
    pump.heard("both", None)
    pulses.up = True
    assert await pump.flush()
    ((heard, _),) = pulses.flushes
    assert heard["old"].age_seconds >= 0.02
    assert heard["both"].age_seconds < heard["old"].age_seconds
    assert heard["both"].use == USE


async def test_usage_goes_with_every_fifth_flush_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last sample of a workload wins; beyond the bound samples are dropped and counted; texts are cut."""
    monkeypatch.setattr(module, "MAX_USAGE", 2)
    drops: Counter[str] = Counter()
    pulses = FakePulses()
    pump = PulsePump(pulses, "f", listening=lambda: True, on_drop=lambda what: drops.update([what]))
    for workload_id in ("a", "b", "c"):
        pump.used("n1", sample(workload_id))
    pump.used("n1", sample("a", cpu=7.0))
    for _ in range(5):
        await pump.flush()
    assert [(one.workload_id, one.cpu_percent) for one in pulses.usage] == [("a", 7.0), ("b", 1.0)]
    assert pulses.usage[0].node_id == "n1"
    assert len(pulses.usage[0].source) == 32
    assert pulses.usage[0].collected_at > 0
    assert drops == {"usage": 1}


async def test_usage_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within its bound; a newer sample stays."""
    monkeypatch.setattr(module, "USAGE_EVERY", 1)
    pulses = FakePulses()
    pump = PulsePump(pulses, "f", listening=lambda: True)
    pump.used("n1", sample("a"))
    pulses.up = False
    await pump.flush()
    pump.used("n1", sample("b"))
    pulses.up = True
    await pump.flush()
    assert {one.workload_id for one in pulses.usage} == {"a", "b"}


async def test_a_front_that_is_not_reachable_does_not_claim_to_listen() -> None:
    """Before it is ready, and from when it stops."""
    pulses = FakePulses()
    pump = PulsePump(pulses, "f", listening=lambda: False)
    await pump.flush()
    assert pulses.flushes == [({}, False)]


async def test_closing_sends_the_last_pulses_and_signs_off() -> None:
    """Also when Redis is away it ends without an error."""
    pulses = FakePulses()
    pump = PulsePump(pulses, "f", listening=lambda: False)
    pump.start()
    pump.heard("n1", USE)
    await pump.close()
    assert any("n1" in heard for heard, _ in pulses.flushes)
    assert pulses.left == ["f"]
    pulses.up = False
    await pump.close()
