"""A collector of traces: takes OTLP over HTTP and keeps the spans."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.servers import free_port


@dataclass(frozen=True)
class Seen:
    """One span, and which component of the control plane sent it."""

    component: str
    span: Span


class Collector:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.spans: list[Seen] = []
        self.address = ""

    def take(self, body: bytes) -> None:
        """Keep the spans of one request."""
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [Seen(attributes.get("service.component", ""), span) for span in scope.spans]

    def traces(self) -> dict[bytes, list[Seen]]:
        """Return the spans by trace."""
        found: dict[bytes, list[Seen]] = {}
        for seen in list(self.spans):
            found.setdefault(seen.span.trace_id, []).append(seen)
        return found


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector for a block, on a free port of the loopback."""
    collector = Collector()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_words: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", free_port()), Handler) as server:
        collector.address = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, name="collector")
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
