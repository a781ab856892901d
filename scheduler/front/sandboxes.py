"""`scheduler.v1.Scheduler`: the sandbox half. All its calls exist, none is served by this version."""

from __future__ import annotations

import grpc

from scheduler.front.services import handlers_of
from scheduler.pb import scheduler_pb2

SERVICE = scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"]


def sandbox_handlers() -> grpc.GenericRpcHandler:
    """Return handlers that answer UNIMPLEMENTED."""
    return handlers_of(SERVICE, object())
