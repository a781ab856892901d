"""gRPC credentials made of followed files: what is replaced on disk is used by the next handshake.

gRPC speaks TLS 1.2 and 1.3 only. A server made of these asks every client for a certificate of
the CA in the files; connections that stand go on whatever becomes of the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import grpc

from scheduler.tls.files import FollowedFiles, TlsSet


def server_credentials(followed: FollowedFiles) -> grpc.ServerCredentials:
    """Return credentials of a server that asks for client certificates, and looks at the files at each handshake."""
    told = followed.current()

    def newer() -> grpc.ServerCertificateConfiguration | None:
        nonlocal told
        current = followed.current()
        if current is told:
            return None
        told = current
        return _configuration(current)

    # The stubs know nothing of "None: no change", which grpc documents.
    return grpc.dynamic_ssl_server_credentials(_configuration(told), newer, require_client_authentication=True)  # type: ignore[arg-type]


def _configuration(files: TlsSet) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(files.key, files.cert)], root_certificates=files.ca)


class ChannelCredentials:
    """Credentials for new channels. gRPC's own are fixed once made: a change of the files makes others."""

    def __init__(self, followed: FollowedFiles) -> None:
        """Take the files."""
        self._followed = followed
        self._made_of: TlsSet | None = None
        self._made: grpc.ChannelCredentials | None = None

    def current(self) -> grpc.ChannelCredentials:
        """Return credentials of what the files hold; the same object until that changes."""
        files = self._followed.current()
        if self._made is None or files is not self._made_of:
            self._made_of, self._made = files, channel_credentials(files)
        return self._made


def channel_credentials(files: TlsSet) -> grpc.ChannelCredentials:
    """Return credentials of a client that shows its certificate and takes servers of the CA, by the name it dials."""
    return grpc.ssl_channel_credentials(files.ca, files.key, files.cert)


def names_of(auth_context: Mapping[str, Iterable[bytes]]) -> tuple[str, ...]:
    """Return the names in a caller's certificate; none when it has none, or there is no TLS."""
    found = [*auth_context.get("x509_common_name", ()), *auth_context.get("peer_dns", ())]
    return tuple(dict.fromkeys(name.decode("utf-8", "replace") for name in found))
