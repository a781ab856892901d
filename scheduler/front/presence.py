"""The front's own DNS records, for gateways that look for it: under a lease, so they go however the front ends."""

from __future__ import annotations

import asyncio
import socket

import psutil
import structlog

from scheduler.domain.dns import front_records, is_any, is_loopback
from scheduler.domain.errors import Conflict, StoreUnavailable
from scheduler.front.parts import FrontParts
from scheduler.store.keys import DNS
from scheduler.store.lease import Lease
from scheduler.store.write import Ref, View, Write
from scheduler.telemetry.redis import end_task

LEASE_SECONDS = 15
"""How long the records of a front that was killed are still there."""
PAUSE_SECONDS = 1.0

_log = structlog.get_logger("scheduler.front.presence")


class Presence:
    """Keeps the records of one front. Never in the way of anything: what goes wrong is told and tried again."""

    def __init__(self, parts: FrontParts) -> None:
        """Take the front's parts."""
        self._parts = parts
        self._lease: Lease | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, host: str, port: int) -> None:
        """Begin to write where this front is; host: the one that it is bound to."""
        settings = self._parts.settings
        if not settings.domain:
            return
        address = settings.advertise_ip or advertised(host)
        if not address:
            _log.warning("no DNS records: this machine has no address but loopback; set SCHEDULER_ADVERTISE_IP")
            return
        self._task = asyncio.create_task(self._keep(address, settings.advertise_port or port), name="presence")

    async def close(self) -> None:
        """Remove the records."""
        if self._task:
            await end_task(self._task)
        await self._revoke()

    async def _keep(self, address: str, port: int) -> None:
        told = False
        while True:
            try:
                await self._written_until_lost(address, port)
                told = False
            except (StoreUnavailable, Conflict) as error:
                if not told:
                    _log.warning("the DNS records of this front are not written yet", error=str(error))
                told = True
            await asyncio.sleep(PAUSE_SECONDS)

    async def _written_until_lost(self, address: str, port: int) -> None:
        """Write the records under a new lease; return when that is lost. Raises StoreUnavailable, Conflict."""
        if not self._parts.modes.writable:
            return
        await self._revoke()
        self._lease = lease = Lease(self._parts.etcd, LEASE_SECONDS)
        await lease.start()
        records = front_records(self._parts.settings.domain, self._parts.front_id, address, port)

        def decide(_view: View) -> Write[None]:
            write: Write[None] = Write(None)
            for identifier, record in records.items():
                write.put(DNS, identifier, record, lease=lease.id)
            return write

        await self._parts.store.transact([Ref(DNS, identifier) for identifier in records], decide)
        _log.info("the DNS records of this front are written", domain=self._parts.settings.domain, host=address)
        await lease.lost.wait()

    async def _revoke(self) -> None:
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            await lease.revoke()
        except StoreUnavailable as error:
            _log.info("the DNS records of this front stay until their lease ends", error=str(error))


def advertised(host: str) -> str:
    """Return the address by which others reach a server that is bound to this host; blank when there is none.

    Bound to one address or to loopback: that one. Bound to all: the first IPv4 address that is not loopback.
    """
    if not is_any(host):
        return "127.0.0.1" if host == "localhost" else host
    found = [
        address.address
        for _, addresses in sorted(psutil.net_if_addrs().items())
        for address in addresses
        if address.family == socket.AF_INET and not is_loopback(address.address)
    ]
    return found[0] if found else ""
