"""Docstrings as the generator expects them; griffe loads this as an extension.

Examples of the interpreter become blocks of code, which Markdown would take for quotations. An entry for several
arguments, ``step, item: …``, becomes an entry for each. A record lists all of its fields, those too whose name and type say
enough.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from griffe import Class, Extension, Object

_EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!\n).+\n?)*\n*)+", re.MULTILINE)
_DIRECTIVE = re.compile(r" *# doctest: .*")
_ATTRIBUTES = re.compile(r"^Attributes:\n((?: .*\n?|\n(?= ))*)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+).*(?:\n {5,}.*)*", re.MULTILINE)
_SEVERAL = re.compile(r"^( +)(\w+(?:, \w+)+)(: .*(?:\n\1 +.*)*)", re.MULTILINE)


class Docstrings(Extension):
    """Changes the docstring of every object that griffe reads."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = each_argument(fenced(obj.docstring.value))
            if isinstance(obj, Class):
                obj.bases = [
                    base for base in obj.bases if str(base) not in ("Struct", "Record")
                ]  # every record's
                obj.docstring.value = all_fields(obj.docstring.value, fields(obj))


def fenced(text: str) -> str:
    """The text with its examples as blocks of code, without directives of doctest."""
    return _EXAMPLE.sub(
        lambda found: f"```pycon\n{_DIRECTIVE.sub('', found[0]).rstrip()}\n```\n\n", text
    )


def each_argument(text: str) -> str:
    """The text with one entry for each argument."""
    return _SEVERAL.sub(
        lambda found: "\n".join(f"{found[1]}{name}{found[3]}" for name in found[2].split(", ")),
        text,
    )


def fields(record: Object) -> list[str]:
    """The public fields of a class, in order; not its properties and constants."""
    return [
        name
        for name, member in record.members.items()
        if member.is_attribute
        and not name.startswith("_")
        and "instance-attribute" in member.labels
        and "property" not in member.labels
        and member.annotation
    ]


def all_fields(text: str, names: Sequence[str]) -> str:
    """The text with an entry under ``Attributes:`` for each of these names."""
    section = _ATTRIBUTES.search(text)
    entries = {found[1]: found[0] for found in _ENTRY.finditer(section[1])} if section else {}
    if set(names) <= set(entries):
        return text
    listed = [entries.get(name, f"    {name}: ") for name in dict.fromkeys([*names, *entries])]
    made = "\n".join(["Attributes:", *listed, ""])
    if section is None:
        return f"{text.rstrip()}\n\n{made}"
    return f"{text[: section.start()]}{made}\n{text[section.end() :]}"
