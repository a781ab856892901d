"""Certificates from Vault's PKI, over its HTTP API: sign in, then have one issued.

Token: `auth/token/lookup-self` proves that it is good. AppRole: `{mount}/login` gives one. Then
`{pki mount}/issue/{role}`. Redirects are not followed, for they would carry the token elsewhere.
Secrets stand in no message.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

CALL_SECONDS = 3.0
"""With two calls an issue ends before a stopping front is out of patience."""
MAX_ANSWER_BYTES = 1024 * 1024
_MAX_TEXT = 300
_OK = (200, 204)


class VaultFailed(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """Vault does not answer, or does not do what it was asked; the text says what and why, without secrets."""


@dataclass(frozen=True, slots=True)
class Vault:
    """Where Vault is, how to sign in, and whose certificates to ask for."""

    address: str
    """http://… or https://…"""
    pki_mount: str
    pki_role: str
    token: str = field(default="", repr=False)
    """Blank: sign in by AppRole."""
    approle_mount: str = "auth/approle"
    role_id: str = field(default="", repr=False)
    secret_id: str = field(default="", repr=False)
    ca: str = ""
    """CA file for https; blank: those of the system."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the certificate is to say."""

    common_name: str
    ttl_seconds: float
    dns_names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Issued:
    """PEM texts."""

    ca: str
    cert: str
    key: str


def issue(vault: Vault, wanted: Wanted) -> Issued:
    """Sign in and have a certificate issued; raises VaultFailed. Blocks for some seconds at most."""
    token = _sign_in(vault)
    answer = _call(
        vault,
        "POST",
        f"{vault.pki_mount}/issue/{vault.pki_role}",
        token,
        {
            "common_name": wanted.common_name,
            "ttl": f"{round(wanted.ttl_seconds)}s",
            "alt_names": ",".join(wanted.dns_names),
            "ip_sans": ",".join(wanted.addresses),
        },
    )
    data = _part(answer, "data")
    chain = data.get("ca_chain") or []
    authorities = [str(pem).strip() for pem in [data.get("issuing_ca", ""), *chain] if str(pem).strip()]
    cert, key = str(data.get("certificate", "")).strip(), str(data.get("private_key", "")).strip()
    if not authorities or not cert or not key:
        raise VaultFailed(f"Vault at {vault.address} issued no certificate, key and CA")
    return Issued("\n".join(dict.fromkeys(authorities)) + "\n", cert + "\n", key + "\n")


def _sign_in(vault: Vault) -> str:
    if vault.token:
        _call(vault, "GET", "auth/token/lookup-self", vault.token)
        return vault.token
    login = {"role_id": vault.role_id, "secret_id": vault.secret_id}
    answer = _call(vault, "POST", f"{vault.approle_mount}/login", "", login)
    token = str(_part(answer, "auth").get("client_token", ""))
    if not token:
        raise VaultFailed(f"Vault at {vault.address} gave no token to the AppRole")
    return token


def _part(answer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = answer.get(name)
    return part if isinstance(part, dict) else {}


def _call(vault: Vault, method: str, path: str, token: str, body: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    connection = _connection(vault)
    headers = {"X-Vault-Request": "true"} | ({"X-Vault-Token": token} if token else {})
    try:
        connection.request(method, f"/v1/{path}", json.dumps(body) if body else None, headers)
        with connection.getresponse() as answer:
            status, content = answer.status, answer.read(MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise VaultFailed(f"Vault at {vault.address} cannot be reached: {_plain(vault, token, str(error))}") from None
    finally:
        connection.close()
    return _read(vault, token, path, status, content)


def _read(vault: Vault, token: str, path: str, status: int, content: bytes) -> Mapping[str, Any]:
    try:
        read = json.loads(content) if content else {}
    except ValueError:
        read = {}
    found: Mapping[str, Any] = read if isinstance(read, dict) else {}
    if status not in _OK:
        why = "; ".join(map(str, found.get("errors") or [])) or "no reason given"
        raise VaultFailed(f"Vault at {vault.address} answers {status} to {path}: {_plain(vault, token, why)}")
    return found


def _connection(vault: Vault) -> http.client.HTTPConnection:
    where = urlsplit(vault.address)
    host = where.hostname or ""
    if where.scheme != "https":
        return http.client.HTTPConnection(host, where.port or 80, timeout=CALL_SECONDS)
    try:
        context = ssl.create_default_context(cafile=vault.ca or None)
    except OSError as error:
        raise VaultFailed(f"the CA file {vault.ca} for Vault cannot be used: {error.strerror or error}") from None
    return http.client.HTTPSConnection(host, where.port or 443, timeout=CALL_SECONDS, context=context)


def _plain(vault: Vault, token: str, text: str) -> str:
    """Return what somebody else says, bounded and without our secrets."""
    for secret in (token, vault.token, vault.role_id, vault.secret_id):
        text = text.replace(secret, "***") if secret else text
    return text[:_MAX_TEXT]
