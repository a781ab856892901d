"""Makes Celery apps: the one of workers and beat, and the ones of other processes that only publish."""

from __future__ import annotations

from celery import Celery

from scheduler.queues.config import celery_config
from scheduler.settings import Settings


def make_app(settings: Settings) -> Celery:
    """Return a configured app without tasks; it is not Celery's current app."""
    app = Celery("fleetbeat", set_as_current=False)
    app.conf.update(celery_config(settings))
    return app
