"""The front's certificate files."""

from __future__ import annotations

import ipaddress

from scheduler.settings import Settings, SettingsError
from scheduler.telemetry.metrics import Metrics
from scheduler.tls.files import BadFiles, FollowedFiles


def follow_files(settings: Settings, metrics: Metrics) -> FollowedFiles | None:
    """Return the front's certificate files; None without TLS. Raises SettingsError: they cannot be used."""
    if not settings.tls_enabled:
        return None
    try:
        return FollowedFiles(settings.tls_files, on_reload=metrics.certificates_read)
    except BadFiles as error:
        raise SettingsError(
            f"TLS is on, but {error}; PERSYS_TLS_CA, PERSYS_TLS_CERT and PERSYS_TLS_KEY name the files"
        ) from None


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches what listens on this host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
