"""Groups of options that several commands share, each with what commands do with it.

A command has a parameter of a group's type, and ``spread`` gives typer the fields in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, get_type_hints

from msgspec import Struct

import reshard
from reshard.cli.console import print_answer, warn
from reshard.cli.options import (
    Item,
    Json,
    MaxMemory,
    Quiet,
    ShowAll,
    Step,
    Unlisted,
    Workers,
    step_of,
)

if TYPE_CHECKING:
    from reshard.cli.progress import Watcher


class Group(Struct, frozen=True):
    """Options that stand together in the help of a command, in the order of the fields."""


class StepAndItem(Group, frozen=True):
    """The part of a run or of a checkpoint with several items."""

    step: Step = None
    item: Item = None

    def of(self, src: str) -> str:
        """The path of the checkpoint that SRC, --step and --item name; ``latest`` is looked up here, once."""
        return reshard.locate(src, step=step_of(self.step), item=self.item)


class Chosen(StepAndItem, frozen=True):
    """The same, and the treatment of files that an index does not list."""

    unlisted: Unlisted = "leave"

    @property
    def option(self) -> dict[str, str]:
        """--unlisted as the library and requests take it; left out at its default, since an older server refuses it."""
        return {} if self.unlisted == "leave" else {"unlisted": self.unlisted}

    def there(self) -> dict[str, Any]:
        """The choice in the form of a request to a server; options at their defaults are left out."""
        asked = {"step": step_of(self.step), "item": self.item, **self.option}
        return {name: value for name, value in asked.items() if value is not None}


class Resources(Group, frozen=True):
    """The memory and the tasks of a run."""

    max_memory: MaxMemory = None
    workers: Workers = None


class Output(Group, frozen=True):
    """The form of a command's answer."""

    show_all: ShowAll = False
    quiet: Quiet = False
    as_json: Json = False

    def watching(self) -> AbstractContextManager[Watcher | None]:
        """The ``progress`` callback of a run."""
        from reshard.cli.progress import watching

        return watching(self.as_json or self.quiet)

    def is_told(self, command: str, record: Struct, warnings: Iterable[str] = ()) -> bool:
        """Prints the JSON, or with --quiet the warnings alone; false where a view is due, which takes rich."""
        if self.as_json:
            print_answer(command, record)
        elif self.quiet:
            warn(warnings)
        return self.as_json or self.quiet


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its groups as parameters of their own."""
    own = signature(command, eval_str=True)
    groups = {
        name: each.annotation
        for name, each in own.parameters.items()
        if isinstance(each.annotation, type) and issubclass(each.annotation, Group)
    }

    @wraps(command)
    def gathered(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(*(given.pop(field) for field in group.__struct_fields__))
        command(**given)

    parameters: list[Parameter] = []
    for name, each in own.parameters.items():
        if name in groups:
            parameters += _fields_of(groups[name])
        else:
            is_rest = each.kind is Parameter.VAR_KEYWORD
            parameters.append(each if is_rest else each.replace(kind=Parameter.KEYWORD_ONLY))
    gathered.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it; no type declares it
    return gathered


def _fields_of(group: type[Group]) -> list[Parameter]:
    types = get_type_hints(group, include_extras=True)
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=types[name])
        for name, default in zip(group.__struct_fields__, group.__struct_defaults__, strict=True)
    ]
