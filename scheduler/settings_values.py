"""How the text of an environment variable becomes a value, and how a value is shown to people."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, get_args
from urllib.parse import urlsplit

from annotated_types import Ge, Gt, Le
from pydantic import BeforeValidator, Field, SecretStr
from pydantic.fields import FieldInfo

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)", re.ASCII)
_BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_LEVELS = {"trace": "debug", "warn": "warning", "fatal": "error", "panic": "error"}
_BROKERS = ("redis", "rediss", "sentinel", "amqp", "amqps", "memory", "filesystem")
_GIT_SCHEMES = ("https", "http", "ssh", "file")
_LONGEST_DOMAIN = 200
"""Characters: DNS allows 253 in a name, and a node's id and shard key come before the domain."""
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_HIGHEST_PORT = 65535


# Values that are not text were given by code; they pass the parsers unchanged.


def parse_duration(value: object) -> object:
    """Turn "15s", "1m30s", "250ms" or a bare number of seconds into seconds; ValueError for other text."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(n + u for n, u in parts) != text:
        msg = 'is not a duration; write it as "15s", "2m", "1m30s", "250ms" or a number of seconds'
        raise ValueError(msg)
    return sum(float(n) * _UNITS[u] for n, u in parts)


def format_duration(seconds: float) -> str:
    """Write seconds the way parse_duration reads them: 90 → "1m30s", 0.25 → "250ms"."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms" if seconds else "0s"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (round(rest, 3), "s"))
    return "".join(f"{amount:g}{unit}" for amount, unit in parts if amount)


def _whole(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"[+-]?\d{1,18}", value.strip(), re.ASCII):
        raise ValueError("is not a whole number")
    return value


def _number(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"[+-]?(\d{1,18}(\.\d*)?|\.\d+)", value.strip(), re.ASCII):
        raise ValueError("is not a number")
    return value


def _flag(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return _BOOLS[value.strip().lower()]
    except KeyError:
        raise ValueError("is neither true nor false") from None


def flag_or_auto(value: object) -> object:
    """Take a flag, or auto, as one of the words true, false and auto."""
    if isinstance(value, str) and value.strip().lower() == "auto":
        return "auto"
    return str(_flag(value)).lower()


def _split(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def lower(value: object) -> object:
    """Take a word in any case."""
    return value.strip().lower() if isinstance(value, str) else value


def level(value: object) -> object:
    """Take a log level, the reference system's names included."""
    lowered = lower(value)
    return _LEVELS.get(lowered, lowered) if isinstance(lowered, str) else lowered


def check_host_port(text: str) -> str:
    """Return "host:port", or raise ValueError; IPv6 hosts stand in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= _HIGHEST_PORT:
        raise ValueError(f"{text!r} is not host:port with a port from 1 to {_HIGHEST_PORT}")
    _check_host(host.removeprefix("[").removesuffix("]") if host.startswith("[") else host, bracketed=host[:1] == "[")
    return text


def _check_host(host: str, *, bracketed: bool = False) -> None:
    if bracketed or ":" in host:
        if not bracketed:
            raise ValueError(f"the IPv6 address {host!r} must stand in brackets, as in [::1]:2379")
        ipaddress.IPv6Address(host)
    elif not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252})", host, re.ASCII):
        raise ValueError(f"{host!r} is not a host name or address")


def _optional_host_port(value: object) -> object:
    return check_host_port(value.strip()) if isinstance(value, str) and value.strip() else value


def _endpoints(value: object) -> object:
    """Accept the reference system's http:// form as well."""
    parts = _split(value)
    if not isinstance(parts, tuple | list):
        return value
    if not parts:
        raise ValueError("names no endpoint")
    if any(str(p).startswith("https://") for p in parts):
        raise ValueError("write host:port without https://, and set FLEETBEAT_ETCD_CA for TLS")
    return tuple(check_host_port(str(p).removeprefix("http://").removesuffix("/")) for p in parts)


def _git_origins(value: object) -> object:
    """Take hosts, bare ones over https, and URLs without a user; of file only a folder."""
    parts = _split(value)
    if not isinstance(parts, tuple | list):
        return value
    return tuple(_git_origin(str(part)) for part in parts)


def _git_origin(text: str) -> str:
    origin = urlsplit(text if "://" in text else f"https://{text}")
    if origin.scheme not in _GIT_SCHEMES:
        raise ValueError(f"{text!r} must begin with one of {', '.join(_GIT_SCHEMES)}, or be a host")
    if origin.query or origin.fragment or "@" in origin.netloc:
        raise ValueError(f"{text!r} must be a host, with nothing but a scheme and a port")
    if origin.scheme == "file":
        if origin.netloc or not origin.path.startswith("/") or ".." in origin.path.split("/"):
            raise ValueError(f"{text!r} must be file:// and an absolute folder")
        return f"file://{origin.path.rstrip('/')}"
    if origin.path.strip("/") or not origin.netloc:
        raise ValueError(f"{text!r} must be a host, with nothing but a scheme and a port")
    if ":" in origin.netloc.rpartition("]")[2]:
        check_host_port(origin.netloc)
    else:
        _check_host(origin.netloc.strip("[]"), bracketed=origin.netloc[:1] == "[")
    return f"{origin.scheme}://{origin.netloc.lower()}"


def _names(value: object) -> object:
    """Take names of certificates; * may stand for the first label."""
    parts = _split(value)
    if isinstance(parts, tuple | list):
        for part in parts:
            if not re.fullmatch(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9._:/ -]{0,251}[A-Za-z0-9])?", str(part), re.ASCII):
                raise ValueError(f"{part!r} is not a name")
    return parts


def _broker(value: object) -> object:
    if isinstance(value, str) and value.strip() and urlsplit(value.strip().split(";")[0]).scheme not in _BROKERS:
        raise ValueError("is not the URL of a broker")
    return value


def _bind_host(value: object) -> object:
    if isinstance(value, str) and value.strip() not in ("::", ""):
        text = value.strip()
        _check_host(text.strip("[]"), bracketed=":" in text)
    return value


def _domain(value: object) -> object:
    """Take a domain, without the dot that may end it; "-" is none."""
    if not isinstance(value, str) or value.strip() in ("", "-"):
        return "" if isinstance(value, str) else value
    text = value.strip().removesuffix(".").lower()
    if len(text) > _LONGEST_DOMAIN or not _DOMAIN.fullmatch(text):
        raise ValueError(f"{value!r} is not a domain name")
    return text


def _optional_ip(value: object) -> object:
    return str(ipaddress.ip_address(value.strip())) if isinstance(value, str) and value.strip() else value


Seconds = Annotated[float, BeforeValidator(parse_duration)]
Whole = Annotated[int, BeforeValidator(_whole)]
Number = Annotated[float, BeforeValidator(_number)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Endpoints = Annotated[tuple[str, ...], BeforeValidator(_endpoints)]
OptionalHostPort = Annotated[str, BeforeValidator(_optional_host_port)]
Domain = Annotated[str, BeforeValidator(_domain)]
OptionalIp = Annotated[str, BeforeValidator(_optional_ip)]
GitOrigins = Annotated[tuple[str, ...], BeforeValidator(_git_origins)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
BrokerUrl = Annotated[SecretStr, BeforeValidator(_broker)]
BindHost = Annotated[str, BeforeValidator(_bind_host)]
Port = Annotated[Whole, Field(ge=1, le=_HIGHEST_PORT)]


def env(name: str, default: Any, meaning: str, *, allowed: str = "", reference: str = "", **checks: Any) -> Any:
    """Declare a setting.

    Args:
        name: the environment variable.
        default: its value when the variable is not set.
        meaning: one sentence for people.
        allowed: what may be given, where type and bounds do not say it all.
        reference: how this differs from the reference system; blank: it does not, or it is ours.
        checks: bounds, as pydantic's Field takes them.

    """
    extra: dict[str, Any] = {"allowed": allowed, "reference": reference}
    return Field(default=default, validation_alias=name, description=meaning, json_schema_extra=extra, **checks)


def variable_of(field: FieldInfo) -> str:
    """Return the environment variable of a setting."""
    return str(field.validation_alias)


def note_of(field: FieldInfo, key: str) -> str:
    """Return what `env` was told as `allowed` or `reference`; blank when nothing."""
    extra = field.json_schema_extra
    return str(extra.get(key, "")) if isinstance(extra, dict) else ""


def allowed_values(field: FieldInfo) -> str:
    """Say what this setting may be."""
    if declared := note_of(field, "allowed"):
        return declared
    if field.annotation is bool:
        return "true, false, 1, 0, yes or no"
    if options := get_args(field.annotation):
        return " or ".join(map(str, options))
    return _range(field)


def is_duration(field: FieldInfo) -> bool:
    """Return whether this setting is a length of time."""
    return any(isinstance(m, BeforeValidator) and m.func is parse_duration for m in field.metadata)


def _range(field: FieldInfo) -> str:
    show = format_duration if is_duration(field) else "{:.15g}".format
    low = [f"from {show(float(str(m.ge)))}" for m in field.metadata if isinstance(m, Ge)]
    low += [f"above {show(float(str(m.gt)))}" for m in field.metadata if isinstance(m, Gt)]
    high = [f"to {show(float(str(m.le)))}" for m in field.metadata if isinstance(m, Le)]
    kinds: dict[object, str] = {int: "a whole number", float: "a number"}
    kind = "a duration" if is_duration(field) else kinds.get(field.annotation, "text")
    return " ".join([kind, *low, *high])


def masked(secret: SecretStr) -> str:
    """Show that a secret is set, and of a URL all but its user and password."""
    text = secret.get_secret_value()
    if not text:
        return ""
    if "://" not in text:
        return "***"
    return ";".join(re.sub(r"//.*@", "//***@", part) for part in text.split(";"))


def shown(field: FieldInfo, value: object) -> str:
    """Write a setting's value as it could stand in the environment, secrets masked."""
    if isinstance(value, SecretStr):
        return masked(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return format_duration(value) if is_duration(field) else f"{value:.6g}"
    return str(value)
