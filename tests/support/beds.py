"""Test beds that not every machine has: their tests skip with a reason, or fail where the bed is required.

FLEETBEAT_TEST_REQUIRE names the beds that must be there, comma-separated, as .ci/run does. A test that skips by
itself and is marked with the name of its bed (docker) fails then too: see tests/conftest.py.
"""

from __future__ import annotations

import os

import pytest

REQUIRED = frozenset(filter(None, os.environ.get("FLEETBEAT_TEST_REQUIRE", "").split(",")))


def need(bed: str, present: object, reason: str) -> None:
    """Skip the running test when a bed is missing; fail it when the bed is required here."""
    if present:
        return
    if bed in REQUIRED:
        pytest.fail(f"the test bed {bed!r} is required here, but {reason}", pytrace=False)
    pytest.skip(reason)
