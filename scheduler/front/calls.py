"""What happens around every inbound call: counted, timed, its errors mapped, and bounded in number.

One interceptor does it for all services. Handlers raise exceptions of the one tree; anything
else is a defect: logged with its traceback, counted, and told to the caller without it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any

import grpc
import structlog
from grpc import aio

from scheduler.domain.errors import FleetbeatError, InvalidInput
from scheduler.front.errors import Overloaded, internal_status, status_of
from scheduler.front.services import Undecodable
from scheduler.front.traced import traced
from scheduler.telemetry.metrics import Metrics, go_code

MAX_IN_FLIGHT = 1_000
"""Unary calls at once, heartbeats aside: those never wait for anything, so they cannot pile up here."""

_log = structlog.get_logger("scheduler.front")

Handler = Any
"""A grpc.RpcMethodHandler."""


def _decoded(request: Any) -> Any:
    if isinstance(request, Undecodable):
        raise InvalidInput("request", f"is not a {request.message_type} message")
    return request


class Outcomes(aio.ServerInterceptor):
    """The interceptor. It wraps each method's handler once and keeps the wrapped one."""

    def __init__(self, metrics: Metrics, services: Collection[str], *, unbounded: Collection[str] = ()) -> None:
        """Take where to count, the names of our services, and the methods that the limit leaves out.

        Health checks and reflection are not ours: they pass by uncounted.
        """
        self._metrics = metrics
        self._prefixes = tuple(f"/{service}/" for service in services)
        self._unbounded = frozenset(unbounded)
        self._wrapped: dict[str, Handler] = {}
        self._in_flight = 0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the method's handler, wrapped; None for a method that nobody serves."""
        method = handler_call_details.method
        if method in self._wrapped:
            return self._wrapped[method]
        handler = await continuation(handler_call_details)
        if handler is None or not method.startswith(self._prefixes):
            return handler
        return self._wrapped.setdefault(method, self._wrap(method, handler))

    def _wrap(self, method: str, handler: Handler) -> Handler:
        coders = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(self._unary(method, handler.unary_unary), **coders)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(self._stream(method, handler.unary_stream), **coders)
        return grpc.stream_stream_rpc_method_handler(self._stream(method, handler.stream_stream), **coders)

    def _unary(self, method: str, serve: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        bounded = method not in self._unbounded
        if bounded:  # heartbeats are too many to be traced
            serve = traced(method, serve)

        async def call(request: Any, context: Any) -> Any:
            begun = time.perf_counter()
            code = "OK"
            self._in_flight += bounded
            try:
                if bounded and self._in_flight > MAX_IN_FLIGHT:
                    raise Overloaded(f"more than {MAX_IN_FLIGHT} calls are in flight here; try again later")  # noqa: TRY301 - mapped right below
                return await serve(_decoded(request), context)
            except asyncio.CancelledError:
                code = "CANCELLED"
                raise
            except Exception as error:  # noqa: BLE001 - the last line of defence: mapped, or logged with its traceback
                status = self._status(method, error)
                code = status.code.name
                await context.abort_with_status(status)
            finally:
                self._in_flight -= bounded
                self._count(method, code, begun)

        return call

    def _stream(
        self, method: str, serve: Callable[[Any, Any], AsyncIterator[Any]]
    ) -> Callable[[Any, Any], AsyncIterator[Any]]:
        async def call(request: Any, context: Any) -> AsyncIterator[Any]:
            begun = time.perf_counter()
            code = "OK"
            try:
                async for response in serve(_decoded(request), context):
                    yield response
            except (asyncio.CancelledError, GeneratorExit):
                code = "CANCELLED"
                raise
            except Exception as error:  # noqa: BLE001 - as above
                status = self._status(method, error)
                code = status.code.name
                await context.abort_with_status(status)
            finally:
                self._count(method, code, begun)

        return call

    def _status(self, method: str, error: Exception) -> Any:
        if isinstance(error, FleetbeatError):
            return status_of(error)
        self._metrics.handler_errors.labels(method).inc()
        _log.error("a call hit a defect", method=method, exc_info=error)
        return internal_status()

    def _count(self, method: str, code: str, begun: float) -> None:
        labels = (method, go_code(code))
        self._metrics.grpc_requests.labels(*labels).inc()
        self._metrics.grpc_duration.labels(*labels).observe(time.perf_counter() - begun)
