"""Where traces go, and how they travel."""

from __future__ import annotations

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, use_span

from scheduler import tracing

TRACEPARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


@pytest.mark.parametrize(
    ("endpoint", "insecure", "url"),
    [
        ("collector:4318", True, "http://collector:4318/v1/traces"),
        ("collector:4318", False, "https://collector:4318/v1/traces"),
        ("https://collector", True, "https://collector/v1/traces"),
        ("http://collector:4318/", False, "http://collector:4318/v1/traces"),
        ("http://collector/otlp/v1/traces", True, "http://collector/otlp/v1/traces"),
    ],
)
def test_F91_an_endpoint_becomes_a_url_and_its_scheme_wins(endpoint: str, insecure: bool, url: str) -> None:
    """Unlike in the reference system, where "insecure" made https:// plain."""
    assert tracing.traces_url(endpoint, insecure=insecure) == url


def test_F91_without_an_endpoint_nothing_is_set_up() -> None:
    """Spans do nothing then, and no context travels."""
    tracing.set_up_tracing("", insecure=True, ratio=1.0, component="test")()
    assert not tracing.is_on()
    with tracing.span("nothing", SpanKind.INTERNAL):
        assert tracing.traceparent() == ""


def test_F91_the_current_span_is_told_as_w3c_writes_it() -> None:
    """So any other system goes on with the trace."""
    context = SpanContext(int("a" * 32, 16), int("b" * 16, 16), is_remote=True, trace_flags=TraceFlags(1))
    with use_span(NonRecordingSpan(context)):
        assert tracing.traceparent() == TRACEPARENT
    assert tracing.is_traceparent(TRACEPARENT)
    assert not tracing.is_traceparent("00-x")


def test_F91_a_parent_from_elsewhere_is_gone_on_with() -> None:
    """A span under a traceparent hands on the same trace."""
    with tracing.span("here", SpanKind.SERVER, parent=TRACEPARENT):
        assert tracing.traceparent().split("-")[1] == "a" * 32
