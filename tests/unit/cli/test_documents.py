"""YAML with lines: what is read, how mistakes are told, and that input is bounded."""

from __future__ import annotations

import pytest

from scheduler.cli.documents import MAX_DEPTH, MAX_VALUES, Document, read_documents


def read_one(text: str) -> Document:
    """Read a text that holds one correct document."""
    documents, mistakes = read_documents("x.yaml", text.encode())
    assert mistakes == []
    assert len(documents) == 1
    return documents[0]


def test_several_documents_are_read_and_empty_ones_left_out() -> None:
    """A file may hold any number of workloads."""
    documents, mistakes = read_documents("x.yaml", b"---\na: 1\n---\n---\n# nothing\n---\nb: [x, 2]\n")
    assert mistakes == []
    assert [d.value for d in documents] == [{"a": 1}, {"b": ["x", 2]}]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("12", 12),
        ("-3", -3),
        ("007", "007"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("1.5", 1.5),
        ("1e5", "1e5"),
        ("8080:80", "8080:80"),
        ("2026-01-01", "2026-01-01"),
        ('"12"', "12"),
        ("=", "="),
    ],
)
def test_plain_scalars_are_read_as_yaml_1_2_does(text: str, value: object) -> None:
    """Norway stays no, a port mapping is not a number to the base of 60, and dates are text."""
    read = read_one(f"v: {text}").value["v"]
    assert read == value
    assert type(read) is type(value)


def test_environment_metadata_and_command_are_taken_as_written() -> None:
    """Numbers there are text, digit for digit."""
    text = "env: {PORT: 8080, V: 1.10, YES: true, 1: x}\nmetadata: {a: 007}\ncommand: [sleep, 30, 1.50]\nn: 1.10"
    assert read_one(text).value == {
        "env": {"PORT": "8080", "V": "1.10", "YES": "true", "1": "x"},
        "metadata": {"a": "007"},
        "command": ["sleep", "30", "1.50"],
        "n": 1.1,
    }


def test_every_value_has_its_line() -> None:
    """A key counts for its value, an item for itself, and what has no line takes the one around it."""
    document = read_one("id: web\ncontainer:\n  ports:\n    - host_port: 1\n    - 2\n")
    assert document.line_of(("container", "ports", 0, "host_port")) == 4
    assert document.line_of(("container", "ports", 1)) == 5
    assert document.line_of(("container", "image")) == 2
    assert document.line_of(()) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a: [1\nb: 2\n", "x.yaml:2: is not YAML"),
        (b"a: 1\n\tb: 2\n", "x.yaml:2: is not YAML"),
        (b"a: 'open\n\n", "x.yaml:3: is not YAML"),
        (b"a: 1\nb: *unknown\n", "x.yaml:2: is not YAML: found undefined alias"),
        (b"a: 1\nb: \xff\n", "x.yaml:2: is not UTF-8 text"),
        (b"a: 1\nb: \x07\n", "x.yaml:2: the character U+0007 is not allowed in YAML"),
        (b"a: 1\nb: 2\na: 3\n", "x.yaml:3: a: stands twice, first in line 1"),
        (b"a:\n  - b: {c: 1,\n      c: 2}\n", "x.yaml:3: a[0].b.c: stands twice, first in line 2"),
        (b"? [a, b]\n: c\n", "x.yaml:1: a key must be plain text"),
        (b"a: !!python/object:os.system x\n", "x.yaml:1: a: 'x' cannot be of type python/object:os.system"),
        (b"a: !!binary aGk=\n", "x.yaml:1: a: 'aGk=' cannot be of type binary"),
        (b"a: !own {b: 1}\n", "x.yaml:1: a: the tag !own is not allowed"),
        (b"a: !!int word\n", "x.yaml:1: a: 'word' cannot be of type int"),
        (b"a: &x\n  b: *x\n", "nested deeper than"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(content: bytes, said: str) -> None:
    """Syntax, encoding, duplicate keys, tags and recursive aliases."""
    _, mistakes = read_documents("x.yaml", content)
    assert said in "\n".join(map(str, mistakes))


def test_documents_before_a_syntax_error_are_still_read() -> None:
    """So their mistakes are told together with it."""
    documents, mistakes = read_documents("x.yaml", b"a: 1\n---\nb: [\n")
    assert [d.value for d in documents] == [{"a": 1}]
    assert [m.line for m in mistakes] == [4]


def test_aliases_are_allowed_and_bounded() -> None:
    """An anchor may be used again; a "billion laughs" may not unfold."""
    assert read_one("a: &x {k: 1}\nb: *x\n").value == {"a": {"k": 1}, "b": {"k": 1}}
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10))
    _, mistakes = read_documents("x.yaml", bomb.encode())
    assert f"more than {MAX_VALUES} values" in str(mistakes[0])


@pytest.mark.parametrize("text", ["[" * 20_000, "{a: " * 20_000, "- " * 20_000 + "x", "a: " + "[" * 65 + "]" * 65])
def test_depth_is_bounded(text: str) -> None:
    """A deep file is refused before it can exhaust the stack."""
    _, mistakes = read_documents("x.yaml", text.encode())
    assert len(mistakes) == 1
    assert f"nested deeper than {MAX_DEPTH} levels" in str(mistakes[0])


def test_a_number_of_thousands_of_digits_is_a_number_out_of_range() -> None:
    """Python refuses to convert it; we do not fail on that."""
    assert read_one("v: " + "9" * 5000).value["v"] > 10**29
