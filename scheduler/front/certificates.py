"""The front's certificate files: followed as they are, and renewed from Vault where the settings say so."""

from __future__ import annotations

import ipaddress
import socket
from functools import partial

import psutil

from scheduler.settings import Settings, SettingsError
from scheduler.telemetry.metrics import Metrics
from scheduler.tls.files import BadFiles, FollowedFiles
from scheduler.tls.renewal import Renewal
from scheduler.tls.vault import Issued, Vault, Wanted, issue

ANY_HOST = ("0.0.0.0", "::", "")  # noqa: S104 - compared, not bound


def follow_files(settings: Settings, metrics: Metrics) -> FollowedFiles | None:
    """Return the front's certificate files; None without TLS. Raises SettingsError: they cannot be used."""
    if not settings.tls_enabled:
        return None
    try:
        return FollowedFiles(settings.tls_files, on_reload=metrics.certificates_read)
    except BadFiles as error:
        raise SettingsError(
            f"TLS is on, but {error}; PERSYS_TLS_CA, PERSYS_TLS_CERT and PERSYS_TLS_KEY name the files"
        ) from None


def renewal_of(settings: Settings) -> Renewal | None:
    """Return what keeps the files good; None when they do not come from Vault."""
    if not settings.vault_in_use:
        return None
    by_token = settings.vault_auth_method == "token"
    vault = Vault(
        settings.vault_addr,
        settings.vault_pki_mount,
        settings.vault_pki_role,
        token=settings.vault_token.get_secret_value() if by_token else "",
        approle_mount=settings.vault_approle_mount,
        role_id=settings.vault_role_id.get_secret_value(),
        secret_id=settings.vault_secret_id.get_secret_value(),
        ca=settings.vault_ca,
    )
    return Renewal(
        settings.tls_files,
        fitting_names(settings),
        partial(_issue, vault, settings),
        retry_seconds=settings.vault_retry_seconds,
    )


def _issue(vault: Vault, settings: Settings) -> Issued:
    return issue(vault, wanted(settings))


def fitting_names(settings: Settings) -> frozenset[str]:
    """Return the names of which a certificate that is already there must have one."""
    service, domain = settings.vault_service_name, settings.vault_service_domain
    names = {service, f"{service}.{domain}" if domain else "", settings.grpc_addr}
    return frozenset(names) - set(ANY_HOST)


def wanted(settings: Settings) -> Wanted:
    """Return the certificate to ask for: every name and address by which this front may be dialled."""
    service, domain, host = settings.vault_service_name, settings.vault_service_domain, socket.gethostname()
    names = [service, "localhost", host, settings.grpc_addr]
    if domain:
        names += [f"{service}.{domain}", f"{host.partition('.')[0]}.{domain}"]
    own = [
        address.address.partition("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6)
    ]
    addresses = ["127.0.0.1", "::1", settings.external_ip, settings.grpc_addr, *own]
    return Wanted(
        service,
        settings.vault_cert_ttl_seconds,
        tuple(dict.fromkeys(name for name in names if name not in ANY_HOST and not is_address(name))),
        tuple(dict.fromkeys(a for a in addresses if a not in ANY_HOST and is_address(a))),
    )


def is_address(text: str) -> bool:
    """Return whether this is an IP address rather than a name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches what listens on this host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
