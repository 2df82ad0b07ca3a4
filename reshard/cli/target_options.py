"""The options of a conversion's target on the command line, made from their declarations.

``convert`` and ``plan`` have all of them. Names and defaults are the library's (``reshard.ConvertOptions``); only
``--verify`` is called ``check`` there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, signature
from typing import Annotated, Any, TypeVar

import typer

import reshard
from reshard import Target
from reshard.cli.options import OPTION_NAMES, casts, renames, size, sizes, usage
from reshard.cli.server_options import is_stored_name
from reshard.cli.targets import Targets
from reshard.conversion.declared_options import OPTIONS
from reshard.conversion.options import LIBRARY_NAMES
from reshard.options import Option

_F = TypeVar("_F", bound=Callable[..., None])

KEYWORD = Parameter.KEYWORD_ONLY

_NAMES = {argument: name for name, argument in LIBRARY_NAMES.items()}

RULES = tuple(name for name, option in OPTIONS.items() if option.kind in ("patterns", "pairs"))
PARSERS: Mapping[str, Callable[[Any], Any]] = {"rename": renames, "cast": casts, "sizes": sizes}

_OF_EACH = ("layout", "mesh", "target")
"""The options from which ``targets_of`` makes the targets; the other options apply to all targets."""


def declared(argument: str, among: Mapping[str, Option] = OPTIONS) -> Any:
    """The option of an argument, for an annotation."""
    option = among[argument]
    return typer.Option(
        *_names_of(argument, option),
        parser=size if option.kind == "size" else None,
        metavar=option.metavar,
        help=option.help,
        rich_help_panel=option.group,
    )


def _names_of(argument: str, option: Option) -> list[str]:
    """The names that are given to typer, where they are not the argument's."""
    if option.kind == "flag":  # with its name given, typer adds no --no-…
        return [f"--{argument.replace('_', '-')}"]
    return [f"--{OPTION_NAMES[argument]}"] if argument in ("sizes", "receiver") else []


def _type_of(option: Option, default: Any) -> Any:
    """The type from which typer knows how to parse the words of a kind."""
    if option.kind == "flag":
        return bool
    if option.kind in ("patterns", "pairs", "sizes"):
        return list[str] | None
    if option.kind == "choice":
        return option.words
    if option.kind == "size":
        return int | None
    return str if default else str | None


def _parameters(*, is_plan: bool) -> list[Parameter]:
    """Every option, in the order of the help."""
    found = []
    for argument, option in OPTIONS.items():
        if is_plan and not option.is_planned:
            continue
        name = _NAMES.get(argument, argument)
        default = default_of(name)
        annotation: Any = Annotated[_type_of(option, default), declared(argument)]
        found.append(Parameter(name, KEYWORD, default=default, annotation=annotation))
        if name == "missing_axes":  # --target stands for the options above it
            found.append(Parameter("target", KEYWORD, default=None, annotation=Targets))
    return found


def takes_target_options(*, is_plan: bool = False, after: str = "item") -> Callable[[_F], _F]:
    """Gives a command every option of a target, behind its parameter ``after``, in place of its ``**given``."""

    def decorate(command: _F) -> _F:
        own = signature(command, eval_str=True)
        *kept, _ = own.parameters.values()
        at = list(own.parameters).index(after) + 1
        shown = [p.replace(kind=KEYWORD) for p in kept]
        parameters = [*shown[:at], *_parameters(is_plan=is_plan), *shown[at:]]
        command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it; no type declares it
        return command

    return decorate


def default_of(name: str) -> Any:
    """The library's default; None for lists, and for ``target``."""
    value = getattr(Target(""), LIBRARY_NAMES.get(name, name))
    return value if isinstance(value, bool) else value or None


def given_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that apply to all targets, parsed; options at their default are left out."""
    return {
        name: PARSERS[name](value) if name in PARSERS else value
        for name, value in given.items()
        if name not in _OF_EACH and value not in (default_of(name), [])
    }


def check_words(
    options: Mapping[str, Any], meshes: Iterable[str | None], *, is_there: bool = False
) -> None:
    """A usage error for options and meshes that are wrong with any checkpoint; ``is_there``: a server converts."""
    # The target decides whether a folder of records is allowed.
    unknown, given = {"state"}, options.get("map")
    if is_there and given is not None and is_stored_name(given):
        unknown |= {"map", "sizes", "reverse"}  # the server has the map
    known = {k: v for k, v in library_options(options).items() if k not in unknown}
    if given is not None and not is_stored_name(given):
        reshard.check_arguments(map=given)  # a file may be wrong: no usage error
    with usage():
        for mesh in {None, *meshes}:
            reshard.check_arguments(mesh=mesh, **known)


def library_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same options under the library's names."""
    return {LIBRARY_NAMES.get(name, name): value for name, value in options.items()}
