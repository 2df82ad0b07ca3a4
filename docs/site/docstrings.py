"""Docstrings as the generator expects them; griffe loads this as an extension.

Examples of the interpreter become blocks of code, which Markdown would take for quotations. An entry for several
arguments, ``step, item: …``, becomes an entry for each.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!\n).+\n?)*\n*)+", re.MULTILINE)
_DIRECTIVE = re.compile(r" *# doctest: .*")
_SEVERAL = re.compile(r"^( +)(\w+(?:, \w+)+)(: .*(?:\n\1 +.*)*)", re.MULTILINE)


class Docstrings(Extension):
    """Changes the docstring of every object that griffe reads."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = each_argument(fenced(obj.docstring.value))


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
