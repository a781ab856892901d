"""The etcd of a command that works on the whole state: that of the environment, or of the cluster on this machine."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator

from scheduler.cli.options import CommandError, Options
from scheduler.domain.errors import FleetbeatError
from scheduler.settings import Settings, SettingsError, load
from scheduler.store.etcd import Etcd


@contextlib.asynccontextmanager
async def etcd_of(options: Options) -> AsyncIterator[Etcd]:
    """Connect for a block; what fleetbeat can name becomes a CommandError."""
    from scheduler.bootstrap import make_etcd  # noqa: PLC0415 - pulls in the whole control plane

    etcd = make_etcd(_settings(options))
    try:
        yield etcd
    except (FleetbeatError, OSError) as error:
        raise CommandError(str(error)) from error
    finally:
        await etcd.close()


def _settings(options: Options) -> Settings:
    try:
        settings = load()
    except SettingsError as error:
        raise CommandError(f"wrong settings:\n{error}") from None
    if os.environ.get("ETCD_ENDPOINTS", "").strip():
        return settings
    try:
        address = str(json.loads((options.data / "cluster.json").read_text())["etcd"])
    except (OSError, ValueError, KeyError, TypeError):
        return settings
    return settings.model_copy(update={"etcd_endpoints": (address.removeprefix("http://"),)})
