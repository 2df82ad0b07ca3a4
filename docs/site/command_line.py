"""The reference of the command line, made of the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.core import TyperArgument, TyperGroup
from typer.main import get_command

from docs.site.prose import help_prose
from reshard.cli.app import make_app

_FIRST = ("Arguments", "Options")
"""Panels that come before those with names of their own."""


def command_line() -> str:
    """Every command: usage, what it does, arguments, options by panel, examples."""
    group = get_command(make_app())
    if not isinstance(group, TyperGroup):
        raise TypeError(f"expected a group of commands, found {group!r}")
    return "\n\n".join(_sections(group))


def _sections(group: TyperGroup, above: str = "") -> Iterator[str]:
    """A section for each command, and after a group those of its own commands."""
    for name, command in group.commands.items():
        yield _section(f"{above}{name}", command)
        if isinstance(command, TyperGroup):
            yield from _sections(command, f"{name} ")


def _section(name: str, command: Any) -> str:
    anchor = name.replace(" ", "-")
    parts = [
        f"## reshard {name} {{#{anchor}}}",
        f"~~~text\n{_usage(name, command)}\n~~~",
        help_prose(command.help or ""),
        *_panels(name, command),
        f"~~~console\n{_examples(command.epilog)}\n~~~",
    ]
    return "\n\n".join(parts)


def _usage(name: str, command: Any) -> str:
    with command.make_context(name, [], resilient_parsing=True) as context:
        pieces = command.collect_usage_pieces(context)
    return f"reshard {name} {' '.join(piece.strip('{}') for piece in pieces)}"


def _panels(name: str, command: Any) -> Iterator[str]:
    shown = [p for p in command.params if not getattr(p, "hidden", False)]
    panels = list(dict.fromkeys([*_FIRST, *map(_panel_of, shown)]))
    for panel in panels:
        inside = [_parameter(name, p) for p in shown if _panel_of(p) == panel]
        if inside:
            yield "\n\n".join([f"**{panel}**{{.panel}}", *inside])


def _panel_of(parameter: Any) -> str:
    if isinstance(parameter, TyperArgument):
        return "Arguments"
    return getattr(parameter, "rich_help_panel", None) or "Options"


def _parameter(name: str, parameter: Any) -> str:
    """A term and what it means, as a list of definitions."""
    form = _form(parameter)
    link = f"{name.replace(' ', '-')}-{parameter.name.replace('_', '-')}"
    return (
        f"`{form}`{{#{link} .option}}{_needed(parameter)}\n:   {help_prose(parameter.help or '')}"
    )


def _form(parameter: Any) -> str:
    if isinstance(parameter, TyperArgument):
        return str(parameter.metavar or parameter.human_readable_name).strip("[]{}")
    names = ", ".join(parameter.opts)
    if parameter.is_flag:
        return names
    choices = getattr(parameter.type, "choices", None)
    return f"{names} {parameter.metavar or ('|'.join(choices) if choices else 'TEXT')}"


def _needed(parameter: Any) -> str:
    if parameter.required:
        return " (required)"
    default = parameter.default
    return f" (default `{default}`)" if isinstance(default, str | int) and default else ""


def _examples(epilog: str | None) -> str:
    lines = (epilog or "").replace("\\[", "[").partition("Examples:\n")[2].splitlines()
    return "\n".join(line[2:] for line in lines)
