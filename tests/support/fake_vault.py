"""A small HTTP server that speaks the three calls of Vault that are used, with a real CA behind them.

It is no Vault: what a real one checks beyond these calls (policies, roles' constraints) is not there.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.certificates import Authority

TOKEN = "hvs.s3cr3t-t0ken"  # noqa: S105 - of a server that lives for one test
SECRET_ID = "s3cr3t-1d"  # noqa: S105


class FakeVault:
    """What the server knows, and what it was asked."""

    def __init__(self, ca: Authority, port: int = 0) -> None:
        """Listen."""
        self.ca = ca
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.refuse = ""
        """What every call answers instead, as an error that repeats the token."""
        self.dates = ("", "")
        """Begin and end of the certificates; blank: a day from now."""
        self.redirect_to = ""
        self._lock = threading.Lock()
        vault = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer({})

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: dict[str, Any]) -> None:
                status, content = vault.answer(self.path, self.headers.get("X-Vault-Token", ""), body)
                self.send_response(status)
                if status == 307:
                    self.send_header("Location", vault.redirect_to + self.path)
                self.end_headers()
                self.wfile.write(json.dumps(content).encode())

            def log_message(self, *_args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def issued(self) -> list[dict[str, Any]]:
        """Return what certificates were asked for."""
        return [body for path, body in self.asked if "/issue/" in path]

    def answer(self, path: str, token: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Answer a call as Vault does."""
        with self._lock:
            self.asked.append((path, body))
            if self.redirect_to:
                return 307, {}
            if self.refuse:
                return 503, {"errors": [f"{self.refuse} {token or SECRET_ID}"]}
            return self._log_in(body) if path == "/v1/auth/approle/login" else self._serve(path, token, body)

    def _log_in(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        good = body == {"role_id": "role", "secret_id": SECRET_ID}
        return (200, {"auth": {"client_token": TOKEN}}) if good else (400, {"errors": ["invalid secret id"]})

    def _serve(self, path: str, token: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if token != TOKEN:
            return 403, {"errors": ["permission denied"]}
        if path == "/v1/auth/token/lookup-self":
            return 200, {"data": {"ttl": 0}}
        if path == "/v1/pki/issue/persys-scheduler":
            return 200, {"data": self._issue(body)}
        return 404, {"errors": []}

    def _issue(self, body: dict[str, Any]) -> dict[str, Any]:
        names = [f"DNS:{name}" for name in body["alt_names"].split(",") if name]
        names += [f"IP:{address}" for address in body["ip_sans"].split(",") if address]
        made = self.ca.sign(body["common_name"], names=",".join(names), dates=self.dates)
        ca = self.ca.ca.read_text()
        return {
            "certificate": pathlib.Path(made.cert).read_text().strip(),
            "private_key": pathlib.Path(made.key).read_text().strip(),
            "issuing_ca": ca.strip(),
            "ca_chain": [ca.strip()],
        }

    def close(self) -> None:
        """Go away."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def vault_of(ca: Authority, port: int = 0) -> Iterator[FakeVault]:
    """Run it for a block."""
    vault = FakeVault(ca, port)
    try:
        yield vault
    finally:
        vault.close()
