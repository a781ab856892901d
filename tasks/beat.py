"""The scheduler of `celery -A tasks beat`."""

from __future__ import annotations

from scheduler.leadership.beat import ElectedScheduler
from scheduler.leadership.candidate import BeatParts
from scheduler.settings import Settings


class Scheduler(ElectedScheduler):
    """The elected beat, with real parts."""

    async def open_parts(self, settings: Settings) -> BeatParts:
        """Connect to the configured etcd."""
        from scheduler.bootstrap import open_beat  # noqa: PLC0415 - not for the banner, and not in the main thread

        return await open_beat(settings)
