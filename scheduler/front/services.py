"""From an object with some methods of a service to all methods of it: the rest says that it is not served yet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from scheduler.front.errors import NotServed


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Stands for a request that is no message of its type; whoever wraps the handlers refuses it.

    Raising while a request is decoded would answer UNKNOWN, past every interceptor.
    """

    message_type: str


def handlers_of(service: ServiceDescriptor, *implementations: object) -> grpc.GenericRpcHandler:
    """Return the handlers of all methods of a service.

    The first implementation that has a method of the same name serves it: `async def` where one
    answer is due, an async generator where a stream is. Every other method answers UNIMPLEMENTED
    with a text that names it.
    """
    handlers = {method.name: _handler(method, _serving(method.name, implementations)) for method in service.methods}
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _serving(name: str, implementations: Sequence[object]) -> Any:
    return next((getattr(one, name) for one in implementations if hasattr(one, name)), None)


def _handler(method: MethodDescriptor, serve: Any) -> grpc.RpcMethodHandler[Any, Any]:
    coders: dict[str, Any] = {
        "request_deserializer": _decoder(method),
        "response_serializer": GetMessageClass(method.output_type).SerializeToString,
    }
    if method.client_streaming:  # every such method of ours also streams its answers
        return grpc.stream_stream_rpc_method_handler(serve or _no_stream(method), **coders)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(serve or _no_stream(method), **coders)
    return grpc.unary_unary_rpc_method_handler(serve or _no_answer(method), **coders)


def _decoder(method: MethodDescriptor) -> Callable[[bytes], Any]:
    parse = GetMessageClass(method.input_type).FromString

    def decode(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return Undecodable(method.input_type.full_name)

    return decode


def _no_answer(method: MethodDescriptor) -> Any:
    async def refuse(_request: Any, _context: Any) -> Any:
        raise NotServed(f"{method.full_name} is not served by this version")

    return refuse


def _no_stream(method: MethodDescriptor) -> Any:
    async def refuse(_request: Any, _context: Any) -> AsyncIterator[Any]:
        raise NotServed(f"{method.full_name} is not served by this version")
        yield  # makes it a generator, as the server wants

    return refuse
