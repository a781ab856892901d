"""One trace from a call at the front through a task at a worker to the call at an agent."""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.collector import Seen, collecting
from tests.support.embedded import Embedded


def test_F91_an_apply_is_one_trace_up_to_the_agent(cluster: Embedded) -> None:
    """Real processes, a real collector: front, worker and the call to the agent are spans of one trace."""
    with collecting() as collector, cluster.explaining():
        cluster.environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.address, "OTEL_BSP_SCHEDULE_DELAY": "200"}
        cluster.start()
        cluster.cli("apply", "--image", "host", "--id", "traced", "--", "sleep", "600")
        cluster.wait(lambda: any(is_whole(trace) for trace in collector.traces().values()), "a whole trace")


def is_whole(trace: list[Seen]) -> bool:
    """Whether the trace goes from a call through a task to an agent, each the child of the one before."""
    by_id = {seen.span.span_id: seen for seen in trace}
    for call in trace:
        if call.span.name != "agent ApplyWorkload":
            continue
        assert call.span.kind == Span.SPAN_KIND_CLIENT
        task = by_id.get(call.span.parent_span_id)
        root = by_id.get(task.span.parent_span_id) if task else None
        if task and root and root.span.name.endswith("AgentControl/ApplyWorkload"):
            assert (task.component, root.component) == ("worker", "front")
            attributes = {a.key: a.value.string_value for a in root.span.attributes}
            return attributes["scheduler.workload_id"] == "traced"
    return False
