"""A front for tests of the command line: real gRPC on a real port, answers from a script."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from scheduler.pb import control_pb2, control_pb2_grpc, fleetbeat_pb2, fleetbeat_pb2_grpc
from tests.support.servers import free_port

View = control_pb2.WorkloadView


class FakeFront(control_pb2_grpc.AgentControlServicer, fleetbeat_pb2_grpc.FleetServicer):
    """Keeps what was asked; answers what the test says."""

    def __init__(self) -> None:
        """Start with an empty cluster."""
        self.server = ""
        self.applied: list[control_pb2.ApplyWorkloadRequest] = []
        self.deleted: list[str] = []
        self.retried: list[str] = []
        self.scaled: list[fleetbeat_pb2.ScaleWorkloadRequest] = []
        self.log_requests: list[fleetbeat_pb2.ReadWorkloadLogsRequest] = []
        self.lists: list[Any] = []
        self.nodes: list[control_pb2.NodeView] = []
        self.node_calls: list[Any] = []
        """What operators asked of nodes."""
        self.drains: list[fleetbeat_pb2.GetDrainResponse] = [fleetbeat_pb2.GetDrainResponse()]
        """What GetDrain answers in turn; the last one again and again."""
        self.views: dict[str, list[View]] = {}
        """What GetWorkload answers in turn; the last one again and again."""
        self.answers: dict[str, control_pb2.ApplyWorkloadResponse] = {}
        self.refusals: dict[str, tuple[grpc.StatusCode, str]] = {}
        """Method or workload id → how the call is refused."""
        self.away_for: dict[str, int] = {}
        """Method → so many calls are answered UNAVAILABLE."""
        self.stays: set[str] = set()
        """Workloads that deleting does not remove."""
        self.page_size = 2
        self.stale = False
        self.logs: list[bytes] = []
        self.log_gate = threading.Event()
        """A following log goes on until this is set."""
        self.explanation = fleetbeat_pb2.ExplainWorkloadResponse()
        self.history = fleetbeat_pb2.GetWorkloadHistoryResponse()
        self.status = fleetbeat_pb2.GetClusterStatusResponse()

    def _enter(self, method: str, context: grpc.ServicerContext, workload_id: str = "") -> None:
        if self.away_for.get(method, 0) > 0:
            self.away_for[method] -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "etcd does not answer")
        for key in (method, workload_id):
            if key in self.refusals:
                context.abort(*self.refusals[key])

    def ApplyWorkload(self, request: Any, context: Any) -> Any:
        """Store it, as scripted."""
        self._enter("ApplyWorkload", context, request.workload_id)
        self.applied.append(request)
        default = control_pb2.ApplyWorkloadResponse(success=True, revision_id="r1", status="Pending")
        self.views.setdefault(request.workload_id, [running(request.workload_id)])
        return self.answers.get(request.workload_id, default)

    def GetWorkload(self, request: Any, context: Any) -> Any:
        """Answer the next view."""
        self._enter("GetWorkload", context, request.workload_id)
        views = self.views.get(request.workload_id)
        if not views:
            context.abort(grpc.StatusCode.NOT_FOUND, f'workload "{request.workload_id}" does not exist')
        assert views
        return control_pb2.GetWorkloadResponse(workload=views.pop(0) if len(views) > 1 else views[0])

    def DeleteWorkload(self, request: Any, context: Any) -> Any:
        """Remove it at once."""
        self._enter("DeleteWorkload", context, request.workload_id)
        self.deleted.append(request.workload_id)
        if request.workload_id not in self.stays:
            self.views.pop(request.workload_id, None)
        return control_pb2.DeleteWorkloadResponse(success=True)

    def RetryWorkload(self, request: Any, context: Any) -> Any:
        """Accept it where the workload is known."""
        self._enter("RetryWorkload", context, request.workload_id)
        self.retried.append(request.workload_id)
        known = request.workload_id in self.views
        return control_pb2.RetryWorkloadResponse(accepted=known, reason="" if known else "there is no such workload")

    def GetNode(self, request: Any, context: Any) -> Any:
        """Find a node."""
        self._enter("GetNode", context)
        for node in self.nodes:
            if node.node_id == request.node_id:
                return control_pb2.GetNodeResponse(node=node)
        return context.abort(grpc.StatusCode.NOT_FOUND, f'node "{request.node_id}" does not exist')

    def GetClusterSummary(self, _request: Any, context: Any) -> Any:
        """Answer the summary of the status."""
        self._enter("GetClusterSummary", context)
        return self.status.summary

    def GetClusterStatus(self, _request: Any, context: Any) -> Any:
        """Answer the status."""
        self._enter("GetClusterStatus", context)
        return self.status

    def ListNodes(self, request: Any, context: Any) -> Any:
        """Answer a page."""
        self._enter("ListNodes", context)
        self.lists.append(request)
        found = [n for n in self.nodes if request.status in ("", n.status)]
        page, token = self._page(found, request.page_token)
        return fleetbeat_pb2.ListNodesResponse(nodes=page, next_page_token=token, stale=self.stale)

    def ListWorkloads(self, request: Any, context: Any) -> Any:
        """Answer a page."""
        self._enter("ListWorkloads", context)
        self.lists.append(request)
        found = [v[0] for _, v in sorted(self.views.items()) if request.status in ("", v[0].status)]
        found = [v for v in found if request.node_id in ("", v.assigned_node_id)]
        page, token = self._page(found, request.page_token)
        return fleetbeat_pb2.ListWorkloadsResponse(workloads=page, next_page_token=token, stale=self.stale)

    def DrainNode(self, request: Any, context: Any) -> Any:
        """Accept it."""
        return self._asked("DrainNode", request, context, control_pb2.DrainNodeResponse(accepted=True, message="ok"))

    def UndrainNode(self, request: Any, context: Any) -> Any:
        """Accept it."""
        return self._asked("UndrainNode", request, context, control_pb2.UndrainNodeResponse(message="not drained"))

    def GetDrain(self, request: Any, context: Any) -> Any:
        """Answer the next progress; the last one again and again."""
        answer = self.drains.pop(0) if len(self.drains) > 1 else self.drains[0]
        return self._asked("GetDrain", request, context, answer)

    def TaintNode(self, request: Any, context: Any) -> Any:
        """Accept it."""
        return self._asked("TaintNode", request, context, control_pb2.TaintNodeResponse(message="tainted"))

    def UntaintNode(self, request: Any, context: Any) -> Any:
        """Accept it."""
        return self._asked("UntaintNode", request, context, control_pb2.UntaintNodeResponse(message="untainted"))

    def SetNodeLabel(self, request: Any, context: Any) -> Any:
        """Accept it."""
        return self._asked("SetNodeLabel", request, context, control_pb2.SetNodeLabelResponse(message="labelled"))

    def DeleteNodeLabel(self, request: Any, context: Any) -> Any:
        """Accept it."""
        return self._asked("DeleteNodeLabel", request, context, control_pb2.DeleteNodeLabelResponse(message="bare"))

    def CordonNode(self, request: Any, context: Any) -> Any:
        """Accept it."""
        return self._asked("CordonNode", request, context, fleetbeat_pb2.CordonNodeResponse())

    def UncordonNode(self, request: Any, context: Any) -> Any:
        """Accept it."""
        ready = control_pb2.NodeView(node_id=request.node_id, status="Ready", schedulable=True)
        return self._asked("UncordonNode", request, context, fleetbeat_pb2.UncordonNodeResponse(node=ready))

    def DeleteUnknown(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Remove a copy."""
        self._enter("DeleteUnknown", context)
        self.node_calls.append(request)
        drift = fleetbeat_pb2.Drift(node_id=request.node_id, workload_id=request.workload_id)
        return fleetbeat_pb2.DeleteUnknownResponse(drift=drift)

    def RemoveNode(self, request: Any, context: Any) -> Any:
        """Accept it."""
        answer = fleetbeat_pb2.RemoveNodeResponse(node_id=request.node_id, workloads=2)
        return self._asked("RemoveNode", request, context, answer)

    def _asked(self, method: str, request: Any, context: Any, answer: Any) -> Any:
        self._enter(method, context)
        self.node_calls.append(request)
        return answer

    def _page(self, items: list[Any], token: str) -> tuple[list[Any], str]:
        start = int(token or 0)
        end = start + self.page_size
        return items[start:end], str(end) if end < len(items) else ""

    def ScaleWorkload(self, request: Any, context: Any) -> Any:
        """Take it; there was one copy before."""
        self._enter("ScaleWorkload", context, request.workload_id)
        self.scaled.append(request)
        return fleetbeat_pb2.ScaleWorkloadResponse(
            workload_id=request.workload_id, replicas=request.replicas, previous_replicas=1
        )

    def ExplainWorkload(self, request: Any, context: Any) -> Any:
        """Answer the explanation."""
        self._enter("ExplainWorkload", context, request.workload_id)
        return self.explanation

    def GetWorkloadHistory(self, request: Any, context: Any) -> Any:
        """Answer the history."""
        self._enter("GetWorkloadHistory", context, request.workload_id)
        self.lists.append(request)
        return self.history

    def ReadWorkloadLogs(self, request: Any, context: Any) -> Iterator[Any]:
        """Send the log, and with follow stay until the caller goes."""
        self._enter("ReadWorkloadLogs", context, request.workload_id)
        self.log_requests.append(request)
        for data in self.logs:
            yield fleetbeat_pb2.LogChunk(data=data)
        while request.follow and context.is_active() and not self.log_gate.wait(0.05):
            pass


def running(workload_id: str, *, revision: str = "r1", node: str = "n-1") -> View:
    """Return the view of a workload that runs."""
    return View(
        workload_id=workload_id,
        type="container",
        desired_state="Running",
        status="Running",
        assigned_node_id=node,
        revision_id=revision,
        generation=1,
        assignment_epoch=7,
    )


def view(workload_id: str, status: str, *, node: str = "", reason: str = "", revision: str = "r1") -> View:
    """Return the view of a workload in some state; the reason is why it is pending or failed."""
    found = View(
        workload_id=workload_id, type="container", desired_state="Running", status=status, assigned_node_id=node,
        revision_id=revision,
    )  # fmt: skip
    if status == "Pending":
        found.pending_reason = reason
    else:
        found.failure_reason = reason
    return found


@contextlib.contextmanager
def serving() -> Iterator[FakeFront]:
    """Serve a fake front on a free port for a block."""
    fake = FakeFront()
    server = grpc.server(ThreadPoolExecutor(max_workers=8))
    control_pb2_grpc.add_AgentControlServicer_to_server(fake, server)
    fleetbeat_pb2_grpc.add_FleetServicer_to_server(fake, server)
    port = free_port()
    assert server.add_insecure_port(f"127.0.0.1:{port}") == port
    server.start()
    fake.server = f"127.0.0.1:{port}"
    try:
        yield fake
    finally:
        fake.log_gate.set()
        server.stop(0).wait()
