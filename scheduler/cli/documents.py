"""YAML documents with the line of everything in them, so that a mistake can be told where it stands.

Plain scalars are read as YAML 1.2 does: only true and false are booleans, nothing is a date,
and 8080:80 is text. Under `env`, `metadata` and `command` a scalar is the text as written, so
that `PORT: 8080` and `VERSION: 1.10` mean what they say.

Input is bounded: its size, its depth, and how many values it has once every alias is
replaced by what it stands for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.reader import ReaderError

MAX_BYTES = 1024 * 1024
MAX_VALUES = 50_000
MAX_DEPTH = 64
_MAX_DIGITS = 30
_AS_WRITTEN = ("env", "metadata", "command")

Path = tuple[str | int, ...]
"""Where a value stands in a document: ("container", "ports", 0, "host_port")."""


@dataclass(frozen=True)
class Mistake:
    """Something wrong, and where."""

    source: str
    """The file, or "command line"."""
    line: int
    """From 1; 0: the input has no lines."""
    field: str
    problem: str

    def __str__(self) -> str:
        """Write `web.yaml:12: container.image: is required`."""
        where = f"{self.source}:{self.line}" if self.line else self.source
        return f"{where}: {self.field}: {self.problem}" if self.field else f"{where}: {self.problem}"


@dataclass(frozen=True)
class Document:
    """One document as plain data."""

    source: str
    value: Any
    lines: dict[Path, int] = field(default_factory=dict)

    def mistake(self, path: Path, problem: str) -> Mistake:
        """Tell what is wrong with the value at this path."""
        return Mistake(self.source, self.line_of(path), dotted(path), problem)

    def line_of(self, path: Path) -> int:
        """Return the line of a value, or of the nearest thing around it that has one."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)


def dotted(path: Path) -> str:
    """Write a path as `container.ports[0].host_port`."""
    text = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)
    return text.removeprefix(".")


def read_documents(source: str, content: bytes) -> tuple[list[Document], list[Mistake]]:
    """Read the documents of a file; empty ones are left out. Syntax errors end the reading."""
    documents: list[Document] = []
    mistakes: list[Mistake] = []
    try:
        for node in _nodes(content):
            reader = _Reader(source)
            value = reader.value(node, ())
            mistakes += reader.mistakes
            if value is not None:
                documents.append(Document(source, value, reader.lines))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        mistakes.append(Mistake(source, line, "", "is not UTF-8 text"))
    except yaml.YAMLError as error:
        mistakes.append(_syntax_mistake(source, content, error))
    return documents, mistakes


def _syntax_mistake(source: str, content: bytes, error: yaml.YAMLError) -> Mistake:
    if isinstance(error, ReaderError):
        line = content.decode()[: error.position].count("\n") + 1
        return Mistake(source, line, "", f"the character U+{int(error.character):04X} is not allowed in YAML")
    mark = getattr(error, "problem_mark", None)
    problem = " ".join(str(part) for part in (getattr(error, "context", ""), getattr(error, "problem", error)) if part)
    return Mistake(source, mark.line + 1 if mark else 0, "", f"is not YAML: {problem}")


class _Loader(yaml.SafeLoader):
    """Composes nodes only; bounded in depth, YAML 1.2 scalars."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the base class's own, filled below
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise ComposerError(None, None, f"nested deeper than {MAX_DEPTH} levels", mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", r"[-+]?[0-9]+\.[0-9]*([eE][-+][0-9]+)?", list("-+0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)


def _nodes(content: bytes) -> Iterator[yaml.Node]:
    loader = _Loader(content.decode("utf-8-sig"))
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is not None:
                yield node
    finally:
        loader.dispose()


class _Reader:
    """Turns one document's nodes into plain data, noting lines and collecting mistakes."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[Path, int] = {}
        self.mistakes: list[Mistake] = []
        self.values = 0

    def value(self, node: yaml.Node, path: Path, *, as_written: bool = False) -> Any:
        """Convert a node."""
        self.values += 1
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        if self.values > MAX_VALUES:
            problem = f"has more than {MAX_VALUES} values, aliases counted as what they stand for"
            raise ComposerError(None, None, problem, node.start_mark)
        if len(path) > MAX_DEPTH:  # an alias to what is around it
            raise ComposerError(None, None, f"nested deeper than {MAX_DEPTH} levels", node.start_mark)
        if not str(node.tag).startswith("tag:yaml.org,2002:"):
            self.mistakes.append(Mistake(self.source, line, dotted(path), f"the tag {node.tag} is not allowed"))
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            children = path[-1:] == ("command",)
            return [self.value(item, (*path, i), as_written=children) for i, item in enumerate(node.value)]
        return self._scalar(node, path, as_written=as_written)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        children = bool(path) and path[-1] in _AS_WRITTEN
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.mistakes.append(Mistake(self.source, line, dotted(path), "a key must be plain text"))
                continue
            key = str(key_node.value)
            here = (*path, key)
            if key in result:
                first = self.lines[here]
                self.mistakes.append(Mistake(self.source, line, dotted(here), f"stands twice, first in line {first}"))
                continue
            self.lines[here] = line
            result[key] = self.value(value_node, here, as_written=children)
        return result

    def _scalar(self, node: yaml.Node, path: Path, *, as_written: bool) -> Any:
        text = str(node.value)
        kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
        if kind == "null":
            return None
        if kind == "str" or (as_written and kind in ("int", "float", "bool")):
            return text
        try:
            return _CONVERT[kind](text)
        except (KeyError, ValueError):
            line = node.start_mark.line + 1
            self.mistakes.append(Mistake(self.source, line, dotted(path), f"{text[:40]!r} cannot be of type {kind}"))
            return None


def _integer(text: str) -> int:
    """Python refuses to convert thousands of digits; any number of so many is out of every range."""
    return int(text) if len(text) <= _MAX_DIGITS else int(text[:_MAX_DIGITS])


_CONVERT: dict[str, Any] = {
    "int": _integer,
    "float": float,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
}
