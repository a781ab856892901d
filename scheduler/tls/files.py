"""A certificate, its key and the CA in three PEM files, read and checked as one set.

The files are followed: whoever asks gets what they hold now. A set that is no good (missing,
cut off, a key of another certificate, expired) is told of once and the one before it kept. A
set is taken only when nothing changed while it was read, so that files replaced one after the
other are never mixed.
"""

from __future__ import annotations

import os
import pathlib
import re
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import structlog

MAX_FILE_BYTES = 1024 * 1024
_READS = 3
"""How often a set that changes while it is read is read again; the next asker goes on."""
_NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which Python's ssl does not name: expiry is judged elsewhere."""
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

_TURNS = 10
"""A handshake takes three."""

_log = structlog.get_logger("scheduler.tls")

Stamp = tuple[tuple[int, ...], ...]
Use = Callable[[ssl.SSLContext, ssl.SSLContext], dict[str, Any]]


class BadFiles(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """The files are no set of CA, certificate and key; the text says which one, and why, and nothing of them."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the PEM files are."""

    ca: str
    cert: str
    key: str


@dataclass(frozen=True, slots=True, repr=False)
class TlsSet:
    """What the files held at one moment."""

    ca: bytes
    cert: bytes
    key: bytes
    not_before: float
    not_after: float
    """Unix seconds."""
    names: tuple[str, ...]
    """Common name and DNS names."""


def read_set(files: TlsFiles) -> TlsSet:
    """Read and check the files of one who serves; raises BadFiles."""
    return _read(files, _serving)


def read_client_set(files: TlsFiles) -> TlsSet:
    """Read and check the files of one who only calls: the certificate need not be fit to serve. Raises BadFiles."""
    return _read(files, _calling)


def _read(files: TlsFiles, use: Use) -> TlsSet:
    for _ in range(_READS):
        before = _stamp(files)
        try:
            found = _checked(files, use)
        except BadFiles:
            if _stamp(files) == before:
                raise
        else:
            if _stamp(files) == before:
                return found
    raise BadFiles(f"{files.cert}, {files.key} and {files.ca} keep changing while they are read")


class FollowedFiles:
    """The set that is in force. Safe to ask from any thread; asking costs three looks at the file system."""

    def __init__(
        self,
        files: TlsFiles,
        *,
        on_reload: Callable[[bool], None] = lambda _good: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Read the files; raises BadFiles. `on_reload` is told of each change of the files, and whether it was good."""
        self.files = files
        self._on_reload = on_reload
        self._now = now
        self._lock = threading.Lock()
        self._stamp = _stamp(files)
        self._current = read_set(files)
        if self._current.not_after <= now():
            _log.error("the certificate has expired", file=files.cert, not_after=_shown(self._current.not_after))

    def current(self) -> TlsSet:
        """Return what the files hold, or the last good set while they hold none."""
        with self._lock:
            stamp = _stamp(self.files)
            if stamp != self._stamp:
                self._stamp = stamp
                self._take()
            return self._current

    def _take(self) -> None:
        try:
            found = read_set(self.files)
            if found.not_after <= self._now() < self._current.not_after:
                _bad(self.files.cert, f"expired at {_shown(found.not_after)}")
        except BadFiles as error:
            _log.error("new certificate files are not used, the old ones stay in force", error=str(error))
            self._on_reload(False)  # noqa: FBT003 - it is data
            return
        self._current = found
        _log.info("certificate files were read again", file=self.files.cert, not_after=_shown(found.not_after))
        self._on_reload(True)  # noqa: FBT003


def _stamp(files: TlsFiles) -> Stamp:
    """Return what changes whenever a file is replaced or written to, if not twice in one tick of the kernel's clock."""
    return tuple(_stamp_of(path) for path in (files.ca, files.cert, files.key))


def _stamp_of(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)  # noqa: PTH116 - asked at every handshake
    except OSError:
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _checked(files: TlsFiles, use: Use) -> TlsSet:
    ca, cert, key = _bytes(files.ca), _bytes(files.cert), _bytes(files.key)
    _check_ca(files.ca, ca)
    leaf = _PEM.search(cert)
    if leaf is None:
        _bad(files.cert, "holds no PEM certificate")
    about = _examined(files, leaf.group().decode("ascii", "replace"), use)
    return TlsSet(
        ca,
        cert,
        key,
        not_before=ssl.cert_time_to_seconds(str(about["notBefore"])),
        not_after=ssl.cert_time_to_seconds(str(about["notAfter"])),
        names=_names(about),
    )


def _bytes(path: str) -> bytes:
    try:
        with pathlib.Path(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        _bad(path, f"cannot be read: {error.strerror}")
    if len(content) > MAX_FILE_BYTES:
        _bad(path, f"has more than {MAX_FILE_BYTES} bytes")
    return content


def _check_ca(path: str, ca: bytes) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        _bad(path, f"holds no PEM certificate of a CA: {_reason(error)}")
    if not context.get_ca_certs():
        _bad(path, "holds no certificate of a CA")


def _examined(files: TlsFiles, leaf: str, use: Use) -> dict[str, Any]:
    """Return what the certificate says, after a handshake with itself: it only succeeds with its own key."""
    sides = client, server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client.check_hostname = False
    try:
        for side in sides:
            side.load_cert_chain(files.cert, files.key, password=lambda: _bad(files.key, "is encrypted; give it plain"))
    except (ssl.SSLError, OSError, ValueError) as error:
        _bad(files.key, f"does not belong to {files.cert}, or one of them is damaged: {_reason(error)}")
    try:
        for side in sides:
            side.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
            side.load_verify_locations(cadata=leaf)
        return use(client, server)
    except (ssl.SSLError, ValueError) as error:
        _bad(files.cert, f"cannot be used: {_reason(error)}")


def _serving(client: ssl.SSLContext, server: ssl.SSLContext) -> dict[str, Any]:
    asking, _ = _handshake(client, server)
    return dict(asking.getpeercert() or {})


def _calling(client: ssl.SSLContext, server: ssl.SSLContext) -> dict[str, Any]:
    client.verify_mode, server.verify_mode = ssl.CERT_NONE, ssl.CERT_REQUIRED
    _, answering = _handshake(client, server)
    return dict(answering.getpeercert() or {})


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_TURNS):
        done = [_turn(side) for side in (asking, answering)]
        if all(done):
            return asking, answering
    raise ssl.SSLError("the handshake with itself does not end")


def _turn(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _names(about: dict[str, Any]) -> tuple[str, ...]:
    common = [value for part in about.get("subject", ()) for name, value in part if name == "commonName"]
    alternative = [value for kind, value in about.get("subjectAltName", ()) if kind == "DNS"]
    return tuple(dict.fromkeys([*common, *alternative]))


def _reason(error: Exception) -> str:
    """Say what OpenSSL says, without its file names and numbers."""
    return str(getattr(error, "reason", None) or error).replace("_", " ").lower()[:200]


def _shown(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _bad(path: str, problem: str) -> NoReturn:
    raise BadFiles(f"{path} {problem}")
