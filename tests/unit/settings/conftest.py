"""An environment without any setting, so that the tester's own does not matter."""

from __future__ import annotations

import os

import pytest

from scheduler.settings import Settings
from scheduler.settings_values import variable_of


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove every variable that means something to us."""
    ours = {variable_of(f) for f in Settings.model_fields.values()}
    for name in list(os.environ):
        if name in ours or name.startswith(("FLEETBEAT_", "PERSYS_", "SCHEDULER_", "METER_", "REDIS_")):
            monkeypatch.delenv(name)
