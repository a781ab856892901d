"""Plain data as YAML that people can read and every reader reads back the same."""

from __future__ import annotations

from typing import Any

import yaml

_LINE_ENDS = frozenset("\x85\u2028\u2029\ufeff")


class _Dumper(yaml.SafeDumper):
    """Writes in quotes what PyYAML would write plain and read back as an end of line."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if _LINE_ENDS & set(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent_text)


def yaml_text(*documents: Any) -> str:
    """Write one document, or several with their marks; keys keep their order."""
    text: str = yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, explicit_start=len(documents) > 1
    )
    return text
