"""The help of a command, read from its docstring: what it does, its arguments and options, and examples.

A docstring is the manual page of a command: paragraphs, then sections. An entry of a section says what one option is for::

    Options:
        SRC: The checkpoint to read.
        --out DIR: Write into this folder.

    Examples:
        $ reshard sign ckpt/1000

Arguments are in order; an option has the name of its parameter. The title of a section is the heading above its options, except for
``Options``. A group of options (``reshard.cli.groups``) has such a docstring for its fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import copy
from functools import cache
from inspect import Parameter, getdoc
from typing import Annotated, Any, get_args, get_origin

import typer
from msgspec import Struct
from typer.models import ParameterInfo

_NAMES = {
    "from_": ("--from",),
    "show_all": ("--all",), "quiet": ("--quiet", "-q"), "as_json": ("--json",), "directory": ("--dir",),
}  # fmt: skip
"""The names of options that are not those of their parameters."""

_SECTION = re.compile(r"([A-Z][^.:\n]*):\n    ")


class Entry(Struct, frozen=True):
    """The help of an argument or an option; ``panel`` is the heading above it."""

    metavar: str | None = None
    help: str | None = None
    panel: str | None = None


class Page(Struct, frozen=True):
    """A docstring in its parts; the texts are rich markup.

    Attributes:
        prose: a paragraph a line, so that help is as wide as the terminal.
        options: by name, such as ``--out``.
        arguments: in order.
        examples: the end of the help.
    """

    prose: str
    options: dict[str, Entry]
    arguments: tuple[Entry, ...]
    examples: str


@cache
def page_of(documented: Any) -> Page:
    """The page of a command or of a group of options."""
    prose: list[str] = []
    options: dict[str, Entry] = {}
    arguments: list[Entry] = []
    examples = ""
    # An opening bracket begins a style in rich's markup.
    for part in (getdoc(documented) or "").replace("[", "\\[").split("\n\n"):
        section = _SECTION.match(part)
        if section is None:
            prose.append(_one_line(part))
        elif section[1] == "Examples":
            lines = part.removeprefix("Examples:\n").split("\n")
            examples = "\b\nExamples:\n" + "\n".join(line[2:] for line in lines)
        else:
            for name, entry in _entries(part[section.end() :], section[1]):
                if name:
                    options[name] = entry
                else:
                    arguments.append(entry)
    return Page("\n\n".join(prose), options, tuple(arguments), examples)


def _entries(text: str, title: str) -> Iterator[tuple[str, Entry]]:
    """The entries of a section, each with the name of an option; an argument has none."""
    panel = None if title == "Options" else title
    for each in re.split(r"\n    (?=\S)", text):
        head, _, told = each.partition(": ")
        name, _, metavar = head.partition(" ") if head.startswith("--") else ("", "", head)
        yield name, Entry(metavar.replace("\\[", "[") or None, _one_line(told), panel)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def with_help(
    parameter: Parameter, options: Mapping[str, Entry], arguments: Iterator[Entry]
) -> Parameter:
    """The parameter as typer takes it, by keyword: a positional one becomes an argument, and any other an option.

    One whose type has a help already, as the options of targets do, stays as it is.
    """
    kind, info = _typed(parameter)
    if info.help is not None:
        return parameter.replace(kind=Parameter.KEYWORD_ONLY)
    if parameter.kind is Parameter.KEYWORD_ONLY:
        names = _NAMES.get(parameter.name, (f"--{parameter.name.replace('_', '-')}",))
        info.param_decls = names
        entry = options.get(names[0], Entry())
    else:
        info.show_default = False
        entry = next(arguments, Entry())
    info.metavar, info.help, info.rich_help_panel = entry.metavar, entry.help, entry.panel
    return parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=Annotated[kind, info])


def _typed(parameter: Parameter) -> tuple[Any, ParameterInfo]:
    """The type of a parameter, and its settings for typer, such as a parser."""
    if get_origin(parameter.annotation) is Annotated:
        kind, info, *_ = get_args(parameter.annotation)
        return kind, copy(info)
    if parameter.kind is Parameter.KEYWORD_ONLY:
        return parameter.annotation, typer.Option()
    return parameter.annotation, typer.Argument()
