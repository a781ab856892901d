"""Traces: one from the call at a front through the task at a worker to the call at an agent, sent by OTLP over HTTP.

Off until an endpoint is set; then nothing but OpenTelemetry's API is in the way, whose spans do
nothing. The context travels as W3C's `traceparent`: in the metadata of calls, and as a field of
the messages on the queues. What else the SDK reads from OTEL_… variables (headers, resource
attributes, batch sizes) is left to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

SERVICE_NAME = "fleetbeat"
FLUSH_MILLISECONDS = 1000
_PATH = "/v1/traces"
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_propagator = TraceContextTextMapPropagator()
_tracer = trace.get_tracer(SERVICE_NAME)


def traces_url(endpoint: str, *, insecure: bool) -> str:
    """Return where to send spans: "host:port" gets a scheme and the usual path, a URL without a path the path.

    insecure: plain HTTP for an endpoint that names no scheme; one that does is taken at its word.
    """
    url = endpoint if "://" in endpoint else f"{'http' if insecure else 'https'}://{endpoint}"
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}/{path}" if slash and path else f"{scheme}://{host}{_PATH}"


def set_up_tracing(endpoint: str, *, insecure: bool, ratio: float, component: str) -> Callable[[], None]:
    """Send this process's spans to an endpoint, blank: nowhere; return what sends the last ones and stops.

    ratio: the share of traces that begin here and are kept; what arrives with a decision keeps it.
    Call it once in a process, after it has forked.
    """
    if not endpoint:
        return lambda: None
    # The SDK is only loaded where it is used: the command line and most clusters need none of it.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased  # noqa: PLC0415

    provider = TracerProvider(
        resource=Resource.create({"service.name": SERVICE_NAME, "service.component": component}),
        sampler=ParentBased(TraceIdRatioBased(ratio)),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(endpoint=traces_url(endpoint, insecure=insecure))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)

    def shut_down() -> None:
        provider.force_flush(FLUSH_MILLISECONDS)
        provider.shutdown()

    return shut_down


def is_on() -> bool:
    """Whether spans of this process go anywhere."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@contextmanager
def span(
    name: str, kind: SpanKind, *, parent: str = "", attributes: Mapping[str, str | int] | None = None
) -> Iterator[Span]:
    """Do something as a span; an error marks it and rises.

    parent: the caller's `traceparent`; blank: the current span, if there is one.
    """
    context = _propagator.extract({"traceparent": parent}) if is_traceparent(parent) else None
    with _tracer.start_as_current_span(name, context, kind, attributes) as current:
        yield current


def is_traceparent(text: str) -> bool:
    """Whether a text is a `traceparent` as W3C writes them."""
    return _TRACEPARENT.fullmatch(text) is not None


def traceparent() -> str:
    """Return the `traceparent` of the current span; blank when there is none."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get("traceparent", "")


def failed(current: Span, text: str) -> None:
    """Mark a span as failed although nothing was raised."""
    current.set_status(Status(StatusCode.ERROR, text))
