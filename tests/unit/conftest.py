"""What all unit tests share."""

from __future__ import annotations

import pytest
from kombu.transport import memory


@pytest.fixture(autouse=True)
def _an_empty_memory_broker() -> None:
    """Kombu's memory broker is one for the whole process: no test finds the messages of another."""
    memory.Channel.queues.clear()
