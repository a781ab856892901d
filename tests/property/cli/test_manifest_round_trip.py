"""Manifest, wire, manifest, YAML, manifest: for any manifest, nothing is lost, added or changed."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.cli.check import check
from scheduler.cli.documents import Document, read_documents
from scheduler.cli.manifest import Manifest, dump, manifest_of, request_of
from scheduler.cli.yaml_text import yaml_text
from scheduler.front.convert import to_spec

_TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20)
_WORD = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,10}[A-Za-z0-9])?", fullmatch=True)
_ENV = st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True), _TEXT, max_size=4)
_PATH = st.from_regex(r"(/[a-z0-9_-]{1,6}){1,3}", fullmatch=True)
_PORT_NUMBER = st.integers(1, 65535)


def _some(**optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=optional)


def _distinct(key: str, **parts: st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(st.fixed_dictionaries(parts), max_size=3, unique_by=lambda item: item[key])


_RESOURCES = _some(
    cpu_millicores=st.integers(0, 10_000_000), memory_mb=st.integers(0, 10**9), disk_gb=st.integers(0, 10**9)
)
_PORTS = _distinct(
    "host_port",
    host_port=_PORT_NUMBER,
    container_port=_PORT_NUMBER,
    protocol=st.sampled_from(["tcp", "udp", "sctp"]),
)
_VOLUMES = _distinct("container_path", host_path=_PATH, container_path=_PATH, read_only=st.booleans())
_CONTAINER = st.fixed_dictionaries(
    {"image": st.from_regex(r"x[a-z]{0,8}(:[a-z0-9.]{1,5})?", fullmatch=True)},
    optional={
        "command": st.lists(_TEXT, max_size=4).map(lambda rest: ["sh", *rest]),
        "env": _ENV,
        "ports": _PORTS,
        "volumes": _VOLUMES,
        "restart_policy": st.sampled_from(["no", "always", "on-failure", "unless-stopped"]),
        "privileged": st.booleans(),
        "managed_volumes": _distinct("name", name=_WORD, size_gb=st.integers(0, 100)),
    },
)
_COMPOSE = st.fixed_dictionaries(
    {"inline_yaml": _WORD.map(lambda name: f"services:\n  '{name}':\n    image: x\n")}, optional={"env": _ENV}
)
_VM = st.fixed_dictionaries(
    {"vcpus": st.integers(1, 1024), "memory_mb": st.integers(1, 10**9), "os_image": st.just("debian-12")},
    optional={
        "disks": st.lists(_some(size_gb=st.integers(0, 1000), pool_name=_WORD), max_size=3),
        "networks": st.lists(_some(dhcp=st.booleans(), static_ip=st.just("10.0.0.7/24")), max_size=2),
        "cloud_init": _some(user_data=_TEXT, meta_data=_TEXT),
    },
)
_MANIFEST = st.one_of(
    *(
        st.fixed_dictionaries(
            {"id": _WORD, kind: part},
            optional={
                "resources": _RESOURCES,
                "desired_state": st.sampled_from(["Running", "Stopped"]),
                "metadata": st.dictionaries(st.from_regex(r"team[a-z]{0,5}", fullmatch=True), _TEXT, max_size=3),
            },
        )
        for kind, part in (("container", _CONTAINER), ("compose", _COMPOSE), ("vm", _VM))
    )
)


def _from_yaml(manifest: Manifest) -> Manifest:
    documents, mistakes = read_documents("x.yaml", yaml_text(dump(manifest)).encode())
    assert mistakes == []
    found, wrong = check(documents[0])
    assert wrong == []
    assert found is not None
    return found


@given(_MANIFEST)
@settings(max_examples=200, deadline=None)
def test_a_manifest_survives_the_wire_and_yaml(value: dict[str, Any]) -> None:
    """What is sent, read back, dumped and applied again is the same workload."""
    manifest, mistakes = check(Document("x.yaml", value))
    assert mistakes == []
    assert manifest is not None
    back = manifest_of(request_of(manifest))
    assert back == manifest
    assert request_of(back) == request_of(manifest)
    assert _from_yaml(back) == manifest


@given(_MANIFEST)
@settings(max_examples=50, deadline=None)
def test_what_the_command_line_lets_through_the_front_takes(value: dict[str, Any]) -> None:
    """No workload passes here and is refused there."""
    manifest, _ = check(Document("x.yaml", value))
    assert manifest is not None
    spec = to_spec(manifest.id, request_of(manifest).spec, manifest.desired_state)
    assert spec.id == manifest.id
    assert spec.type == manifest.type


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    """No input makes the reader fail in another way than by telling mistakes."""
    documents, mistakes = read_documents("x.yaml", content)
    for document in documents:
        manifest, wrong = check(document)
        assert manifest is None
        assert wrong
    assert all(str(m).startswith("x.yaml") for m in mistakes)


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(_MANIFEST, st.data())
@settings(max_examples=200, deadline=None)
def test_a_manifest_with_anything_anywhere_is_checked_without_failing(
    value: dict[str, Any], data: st.DataObject
) -> None:
    """Whatever stands in a field, the answer is a manifest or mistakes that name fields."""
    place = data.draw(st.sampled_from(sorted(value)))
    junk = data.draw(_JUNK)
    inner = value[place]
    if isinstance(inner, dict) and inner and data.draw(st.booleans()):
        value[place] = {**inner, data.draw(st.sampled_from(sorted(inner))): junk}
    else:
        value[place] = junk
    manifest, mistakes = check(Document("x.yaml", value))
    assert (manifest is None) == bool(mistakes)
