"""What users do meanwhile: they apply, change, stop, start and delete workloads, over any front that answers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

import grpc

from scheduler.pb import control_pb2 as pb
from scheduler.pb import control_pb2_grpc
from tests.chaos.history import History
from tests.support.work import Work

_PAUSE_SECONDS = 0.4
_DEADLINE_SECONDS = 5.0
SETTLE_SECONDS = 120.0
_EXCLUSIVE_EVERY = 5
"""Each fifth workload is exclusive."""


class Users:
    """Keeps a number of workloads alive, and changes its mind about them."""

    def __init__(self, servers: Sequence[str], history: History, work: Work, count: int, seed: int) -> None:
        """Take the fronts, and how many workloads there shall be."""
        self._channels = [grpc.insecure_channel(server) for server in servers]
        self._stubs = [control_pb2_grpc.AgentControlStub(channel) for channel in self._channels]
        self._history = history
        self._work = work
        self._dice = random.Random(seed)  # noqa: S311 - a run must be repeatable
        self._ids = [f"chaos-{number}" for number in range(count)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._meddle, name="users")

    def start(self) -> None:
        """Begin to meddle."""
        self._thread.start()

    def stop(self) -> None:
        """Stop meddling."""
        self._stop.set()
        self._thread.join()

    def settle(self) -> None:
        """Apply every workload once more, Running, until each call was taken; those being deleted are waited for."""
        deadline = time.monotonic() + SETTLE_SECONDS
        for workload_id in self._ids:
            while not self._apply(workload_id):
                assert time.monotonic() < deadline, f"{workload_id} cannot be applied; see the history"
                time.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        """Close the channels."""
        for channel in self._channels:
            channel.close()

    def _meddle(self) -> None:
        while not self._stop.wait(_PAUSE_SECONDS):
            workload_id = self._dice.choice(self._ids)
            act = self._dice.choices([self._apply, self._change, self._halt, self._delete], [4, 2, 1, 1])[0]
            act(workload_id)

    def _apply(self, workload_id: str) -> bool:
        return self._call("apply", pb.ApplyWorkloadRequest(workload_id=workload_id, spec=self._spec(workload_id, "")))

    def _change(self, workload_id: str) -> bool:
        spec = self._spec(workload_id, str(self._dice.randrange(1_000_000)))
        return self._call("change", pb.ApplyWorkloadRequest(workload_id=workload_id, spec=spec))

    def _halt(self, workload_id: str) -> bool:
        return self._call("stop", pb.ApplyWorkloadRequest(workload_id=workload_id, desired_state="Stopped"))

    def _delete(self, workload_id: str) -> bool:
        return self._call("delete", pb.DeleteWorkloadRequest(workload_id=workload_id))

    def _call(self, what: str, request: pb.ApplyWorkloadRequest | pb.DeleteWorkloadRequest) -> bool:
        stub = self._dice.choice(self._stubs)
        answer: pb.ApplyWorkloadResponse | pb.DeleteWorkloadResponse
        try:
            if isinstance(request, pb.ApplyWorkloadRequest):
                answer = stub.ApplyWorkload(request, timeout=_DEADLINE_SECONDS)
            else:
                answer = stub.DeleteWorkload(request, timeout=_DEADLINE_SECONDS)
        except grpc.RpcError as error:
            outcome, done = str(error.code().name), False
        else:
            outcome, done = answer.error_message or "taken", answer.success
        self._history.add("call", what=f"{what} {request.workload_id}: {outcome}")
        return done

    def _spec(self, workload_id: str, mark: str) -> pb.WorkloadSpec:
        exclusive = int(workload_id.rpartition("-")[2]) % _EXCLUSIVE_EVERY == 0
        spec = pb.WorkloadSpec(
            type="container",
            resources=pb.ResourceRequirements(cpu_millicores=100, memory_mb=64),
            container=pb.ContainerSpec(image="host", command=self._work.command(workload_id), env={"MARK": mark}),
        )
        if exclusive:
            spec.metadata["fleetbeat.exclusive"] = "true"
        return spec
