"""Inbound calls as spans, in the caller's trace if it sends one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from opentelemetry.trace import SpanKind

from scheduler import tracing

_NAMED = ("node_id", "workload_id", "desired_state", "status")
"""Fields of requests that a span tells, as scheduler.…; none of them is a secret."""
_MAX_TEXT = 256

Serve = Callable[[Any, Any], Awaitable[Any]]


def traced(method: str, serve: Serve) -> Serve:
    """Return the handler of a unary method as one that makes a span; the very same while traces go nowhere."""
    if not tracing.is_on():
        return serve

    async def call(request: Any, context: Any) -> Any:
        parent = next((value for key, value in context.invocation_metadata() or () if key == "traceparent"), "")
        about = _about(request)
        with (
            structlog.contextvars.bound_contextvars(method=method),
            tracing.span(method.lstrip("/"), SpanKind.SERVER, parent=str(parent), attributes=about),
        ):
            return await serve(request, context)

    return call


def _about(request: Any) -> dict[str, str]:
    fields = type(request).DESCRIPTOR.fields_by_name if hasattr(type(request), "DESCRIPTOR") else ()
    told = ((name, getattr(request, name)) for name in _NAMED if name in fields)
    return {f"scheduler.{name}": value[:_MAX_TEXT] for name, value in told if isinstance(value, str) and value}
