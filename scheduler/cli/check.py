"""Checking a document: everything that is wrong with it, each with its line, before anything is sent."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from scheduler.cli.documents import Document, Mistake, Path
from scheduler.cli.fields import KINDS, TYPES, told
from scheduler.cli.manifest import Manifest, kinds_in, request_of
from scheduler.domain.errors import InvalidInput
from scheduler.front.convert import to_spec

_FIELD_PART = re.compile(r"\[(\d+)\]|\['([^']*)'\]|([^.\[\]]+)")


def check(document: Document) -> tuple[Manifest | None, list[Mistake]]:
    """Return the manifest, or everything that is wrong with the document, each with its line."""
    if not isinstance(document.value, dict):
        return None, [document.mistake((), "a workload must be a mapping with id and one of container, compose, vm")]
    problems = list(_kind_problems(document.value))
    manifest = None
    try:
        manifest = Manifest.model_validate(document.value)
        problems += [] if problems else _front_problem(manifest)
    except ValidationError as error:
        problems += [_explain(e) for e in error.errors(include_url=False)]
    mistakes = [document.mistake(path, problem) for path, problem in problems]
    return (None if mistakes else manifest), sorted(mistakes, key=lambda m: m.line)


def _kind_problems(given: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    kinds = kinds_in(given)
    if not kinds:
        yield (), f"one of {', '.join(KINDS)} is required"
    elif len(kinds) > 1:
        yield (kinds[1],), f"stands beside {kinds[0]}; only one of {', '.join(KINDS)} is allowed"
    elif isinstance(given.get("type"), str) and TYPES.get(given["type"].strip().lower(), kinds[0]) != kinds[0]:
        yield ("type",), f"{told(given['type'])} does not fit: the workload is a {kinds[0]}"


def _front_problem(manifest: Manifest) -> Iterator[tuple[Path, str]]:
    """Ask the front's own check, so that nothing is sent that it would refuse. It tells one mistake at a time."""
    try:
        to_spec(manifest.id, request_of(manifest).spec, manifest.desired_state)
    except InvalidInput as error:
        yield _path_of(error.field), error.problem


def _path_of(field: str) -> Path:
    """Return the path that a wire field names, as in spec.container.ports[0].host_port."""
    parts = _FIELD_PART.findall(field.removeprefix("spec."))
    return tuple(int(index) if index else key or name for index, key, name in parts)


_SAID: dict[str, str] = {
    "missing": "is required",
    "string_type": "must be text, in quotes if need be, not {}",
    "bool_type": "must be true or false, not {}",
    "list_type": "must be a list, not {}",
    "dict_type": "must be a mapping, not {}",
    "model_type": "must be a mapping, not {}",
}


def _explain(error: Any) -> tuple[Path, str]:
    path: Path = tuple(part for part in error["loc"] if part != "[key]")
    if error["type"] == "extra_forbidden":
        return path, _unknown_field(path)
    said = _SAID.get(error["type"])
    if said is None:
        return path, str(error["msg"]).removeprefix("Value error, ")
    value = error["input"]
    shown = {dict: "a mapping", list: "a list", type(None): "nothing"}.get(type(value)) or told(value)
    return path, said.format(shown)


def _unknown_field(path: Path) -> str:
    known = list(_part_at(path[:-1]).model_fields)
    given = str(path[-1])
    near = [k for k in known if k.startswith(given)] or difflib.get_close_matches(given, known, 1, 0.6)
    return (
        f"is not a known field; did you mean {near[0]}?" if near else f"is not a known field; known: {', '.join(known)}"
    )


def _part_at(path: Path) -> type[BaseModel]:
    part: type[BaseModel] = Manifest
    for step in path:
        if isinstance(step, str):
            part = next(iter(_parts_in(part.model_fields[step].annotation)), part)
    return part


def _parts_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _parts_in(inner)
