"""Who may call what: one table from method to role, one interceptor, roles from the names in certificates.

TLS has already proved that a certificate is one of the CA. Here its names (common name and DNS
names) say what it is for: FLEETBEAT_OPERATOR_NAMES lists those of operators and gateways,
FLEETBEAT_NODE_NAMES is the form of a node's, which holds the node's id. A node calls what agents
call, for itself only. What is in no table is refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import grpc
from grpc import aio

from scheduler.domain.errors import InvalidInput
from scheduler.domain.ids import check_id
from scheduler.front.errors import Forbidden
from scheduler.tls.credentials import names_of

NODE_ID_PLACE = "{node_id}"
_SHOWN_NAMES = 4


class Role(StrEnum):
    """What a certificate is for."""

    OPERATOR = "operator"
    """People, gateways, automation."""
    NODE = "node"
    """The agent of a node."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may call a method."""

    role: Role
    node_field: str = ""
    """The field of the request that must be the id of the calling node; blank: none."""


_OPERATOR = Access(Role.OPERATOR)
_NODE = Access(Role.NODE)
_OWN_NODE = Access(Role.NODE, "node_id")

_TABLES: Mapping[str, Mapping[Access, str]] = {
    "persys.control.v1.AgentControl": {
        _OWN_NODE: "RegisterNode Heartbeat",
        _NODE: "ControlStream",
        _OPERATOR: """
            ApplyWorkload DeleteWorkload RetryWorkload SubmitAutomationSuggestion ListNodes GetNode ListWorkloads
            GetWorkload GetClusterSummary DrainNode UndrainNode TaintNode UntaintNode SetNodeLabel DeleteNodeLabel
            ListEvents WatchEvents CreateDisk ListDisks GetDisk DeleteDisk CreateBucket ListBuckets GetBucket
            DeleteBucket GetBucketAccess ListBucketObjects""",
    },
    "fleetbeat.v1.Fleet": {
        _OPERATOR: """
            GetClusterStatus ListNodes ListWorkloads ExplainWorkload ReadWorkloadLogs ScaleWorkload CordonNode
            UncordonNode GetDrain RemoveNode FenceNode ReleaseBrake ListBrakes AcceptStore ListDrifts
            DeleteUnknown GetWorkloadHistory""",
    },
    "scheduler.v1.Scheduler": {
        _OWN_NODE: "Heartbeat ReportSandboxEvent RecordP2pArtifact ForgetP2pArtifact UnregisterNode",
        _NODE: "ListP2pPeers LookupP2pArtifact",
        _OPERATOR: "Schedule ListNodes LookupNode RecordAssignment ListObservedNodes GetNode",
    },
}
ACCESS: Mapping[str, Access] = {
    f"/{service}/{method}": access
    for service, table in _TABLES.items()
    for access, methods in table.items()
    for method in methods.split()
}
"""By the method's path."""
OPEN_SERVICES = ("grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection")
"""For every certificate of the CA: probes, and what the interface looks like."""


class Names:
    """What names mean."""

    def __init__(self, operators: Collection[str], node_form: str) -> None:
        """Take the operators' names, *.a.org for any one label before it, and the form of a node's."""
        self._operators = frozenset(operators)
        self._before, _, self._after = node_form.partition(NODE_ID_PLACE)

    def is_operator(self, names: Iterable[str]) -> bool:
        """Return whether one of these is an operator's."""
        return any(name in self._operators or _parent(name) in self._operators for name in names)

    def nodes(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the ids of the nodes that these are the names of."""
        return tuple(node_id for name in names if (node_id := self._node_of(name)))

    def _node_of(self, name: str) -> str:
        inner = name.removeprefix(self._before).removesuffix(self._after)
        if name != f"{self._before}{inner}{self._after}":
            return ""
        try:
            return check_id("node_id", inner)
        except InvalidInput:
            return ""


def _parent(name: str) -> str:
    return f"*.{name.partition('.')[2]}"


def check_access(access: Access | None, names: tuple[str, ...], meaning: Names, request: object) -> None:
    """Return if the bearer of these names may send this request; raises Forbidden. Pure."""
    if access is None:
        raise Forbidden("nobody may call this")
    if access.role is Role.OPERATOR:
        if not meaning.is_operator(names):
            raise Forbidden(f"{_shown(names)} is not among FLEETBEAT_OPERATOR_NAMES, and only operators may call this")
        return
    nodes = meaning.nodes(names)
    if not nodes:
        raise Forbidden(f"{_shown(names)} names no node as FLEETBEAT_NODE_NAMES says, and only nodes may call this")
    asked = getattr(request, access.node_field) if access.node_field else nodes[0]
    if asked not in nodes:
        raise Forbidden(
            f"{access.node_field}: the certificate is one of node {nodes[0]!r}, the call is for {str(asked)[:140]!r}",
            field=access.node_field,
        )


def _shown(names: tuple[str, ...]) -> str:
    if not names:
        return "a certificate without a name"
    return "the certificate " + ", ".join(repr(name[:100]) for name in names[:_SHOWN_NAMES])


class Authorization(aio.ServerInterceptor):
    """The interceptor. It wraps each method's handler once; others, before it, map what it raises."""

    def __init__(self, meaning: Names) -> None:
        """Take what names mean."""
        self._meaning = meaning
        self._wrapped: dict[str, Any] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the method's handler behind the check."""
        method = handler_call_details.method
        if method in self._wrapped:
            return self._wrapped[method]
        handler = await continuation(handler_call_details)
        if handler is None or method.startswith(tuple(f"/{service}/" for service in OPEN_SERVICES)):
            return handler
        return self._wrapped.setdefault(method, self._guarded(ACCESS.get(method), handler))

    def _guarded(self, access: Access | None, handler: Any) -> Any:
        coders = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }

        async def call(request: Any, context: Any) -> Any:
            check_access(access, names_of(context.auth_context()), self._meaning, request)
            return await handler.unary_unary(request, context)

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            check_access(access, names_of(context.auth_context()), self._meaning, request)
            async for answer in (handler.unary_stream or handler.stream_stream)(request, context):
                yield answer

        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(call, **coders)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(stream, **coders)
        return grpc.stream_stream_rpc_method_handler(stream, **coders)
