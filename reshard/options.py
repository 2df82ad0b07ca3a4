"""Option: all that is known of an option but its type and its default.

A room lists its options by name: ``conversion/declared_options.py`` those of every target, ``formats/NAME/options.py`` those of
one format. What checks an option, and what shows it to people, derives from there: the command line, the HTTP
model, the form of the page, and the key of a conversion. Types, defaults and the documentation of the Python
arguments are in ``conversion/options.py``, where type checkers find them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from reshard.arguments import bytes_of, check_choice, check_positive, path_of

Kind = Literal[
    "flag", "choice", "size", "text", "patterns", "pairs", "sizes", "layout", "map", "place"
]
"""Kinds of values: a truth value, one of several words, bytes as a number or as text, text, a list of patterns, pairs of a pattern
and text, sizes by name, the content of a layout file or a map file, or the path or URL of an input. Each surface has one way to ask
for a kind."""

LAYOUT, CHANGES, OUTPUT = "Layout", "Changes on the way", "Output"
"""The groups of the help."""


class Option(Struct, frozen=True, kw_only=True):
    """An option: the check of its value, and its presentation on each surface.

    Attributes:
        group: its heading in the help.
        choices: of the kind ``choice``; None among them stands for a default that depends on other facts.
        example: of the kind ``size``, for messages.
        default_bytes: of the kind ``size``, in place of None.
        read: the parsed value of a text; raises PlanError for one that makes no sense with any checkpoint.
        show: a parsed value as text. Two conversions are the same only if the text is. None for an option that changes no byte of
            the target.
        in_bucket: takes the place of the default for a target in a bucket, by the bytes of memory that are allowed.
        is_planned: True if ``reshard plan`` has it; other options change the work, not the result.
        is_for_clients: True if a request over HTTP may have it.
        metavar, help: on the command line. The help is rich markup, in which a literal opening bracket has a backslash; without a
            metavar it shows the choices.
        description, examples, max_length: of the member of a request.
        label, hint, labels, offered: of the field of a page: its name, the sentence below it, in which code is between backticks, the words
            for each of ``choices``, and values that it proposes. Without a label it has a place of its own.
    """

    kind: Kind
    group: str = OUTPUT
    choices: tuple[str | None, ...] = ()
    example: str = ""
    default_bytes: int | None = None
    read: Callable[[Any], Any] | None = None
    show: Callable[[Any], str] | None = None
    in_bucket: Callable[[int], Any] | None = None
    is_planned: bool = True
    is_for_clients: bool = True
    metavar: str | None = None
    help: str
    description: str | None = None
    examples: tuple[Any, ...] | None = None
    max_length: int | None = None
    label: str = ""
    hint: str = ""
    labels: tuple[str, ...] = ()
    offered: tuple[str, ...] = ()

    @property
    def words(self) -> Any:
        """The type of the words of a ``choice``, for surfaces that derive it from the declaration."""
        listed: Any = Literal[tuple(word for word in self.choices if word is not None)]
        return listed | None if None in self.choices else listed

    @property
    def labelled(self) -> list[tuple[str, str]]:
        """Each word of a ``choice`` with its label in the field; "" for the default."""
        return [(word or "", label) for word, label in zip(self.choices, self.labels, strict=True)]

    def parse(self, name: str, value: Any) -> Any:
        """The parsed value; PlanError for one that makes no sense with any checkpoint."""
        if self.kind == "choice":
            check_choice(name, value, self.choices)
        if self.kind == "size":
            return self._size(name, value)
        if self.kind == "place":
            return None if value is None else path_of(name, value)
        return value if self.read is None else self.read(value)

    def _size(self, name: str, value: Any) -> int | None:
        if value is None:
            return self.default_bytes
        nbytes = bytes_of(name, value)
        check_positive(name, nbytes, f"bytes, such as {self.example}")
        return nbytes
