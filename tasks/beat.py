"""The scheduler of `celery -A tasks beat`."""

from __future__ import annotations

from scheduler.bootstrap import open_beat

from scheduler.leadership.beat import ElectedScheduler


class Scheduler(ElectedScheduler):
    """The elected beat, with real parts."""

    open_parts = staticmethod(open_beat)
