"""The options of a conversion's target on the command line, made from their declarations.

``convert`` and ``plan`` have all of them. Names and defaults are the library's (``reshard.ConvertOptions``); only
``--verify`` is called ``check`` there.

``--target LAYOUT=DST``: several targets of one conversion, as the command line names them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct

import reshard
from reshard import Target
from reshard.cli.groups import Group, is_stored_name, shown_fields, spread
from reshard.cli.options import (
    OPTION_NAMES,
    Misuse,
    Texts,
    casts,
    halves,
    renames,
    size,
    sizes,
    usage,
)
from reshard.conversion.declared_options import OPTIONS
from reshard.conversion.options import LIBRARY_NAMES
from reshard.options import Option


def is_delta(path: str) -> bool:
    """True if a delta is there; false for a path that cannot be read, which the call itself reports."""
    try:
        return [one.kind for one in reshard.inspect_versions(path)] == ["delta"]
    except reshard.ReshardError:
        return False


def split_target(words: Sequence[str]) -> tuple[list[str], str]:
    """The deltas and the target; a usage error where one of them is missing."""
    if len(words) < 2:
        raise Misuse(
            f"{words[0] if words else 'nothing'} alone was given behind BASE; expected every delta and, last, the target: reshard apply BASE "
            "weight_v000001 served"
        )
    return list(words[:-1]), words[-1]


_MESH = re.compile(r"[^=,]+=\d+(,[^=,]+=\d+)*")


class Targets(Group, frozen=True):
    r"""Several targets of one conversion.

    Output:
        --target LAYOUT=DST: Instead of DST, --layout and --mesh; once for each of several targets. The source is read once for all of them
            if memory allows. LAYOUT is a layout file, a mesh such as data=4,model=2, or nothing for the source's own layout. Split at the
            last '='; write '\=' for one in DST. All other options apply to all targets.
    """

    target: Texts = None


class NamedTarget(Struct, frozen=True):
    """A target with the layout file or the mesh that was named for it."""

    dst: str
    layout: str | None = None
    mesh: str | None = None

    def target(self, options: Mapping[str, Any]) -> Target:
        """The target for the library; ``options`` are those of all targets."""
        return Target(self.dst, layout=self.layout, mesh=self.mesh, **options)


def targets_of(
    dst: str | None, layout: str | None, mesh: str | None, several: Sequence[str] | None
) -> list[NamedTarget]:
    """The targets of either form; a usage error if both or neither are given."""
    if not several:
        if dst is None:
            raise Misuse(
                "DST is missing: give the folder of the new checkpoint, or name targets with --target LAYOUT=DST"
            )
        return [NamedTarget(dst, layout, mesh)]
    for name, given in (("DST", dst), ("--layout", layout), ("--mesh", mesh)):
        if given is not None:
            raise Misuse(
                f"{name} {given!r} is given together with --target, which names layout and path of every target; leave it out"
            )
    return [_target(*halves("--target", "LAYOUT=DST", text)) for text in several]


def _target(layout: str, dst: str) -> NamedTarget:
    if _MESH.fullmatch(layout) and not Path(layout).exists():
        return NamedTarget(dst, mesh=layout)
    return NamedTarget(dst, layout or None)


Command = Callable[..., None]

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


class Changes(Group, frozen=True):
    """The rules and the map from one checkpoint to another."""

    select: Annotated[Texts, declared("select")] = None
    drop: Annotated[Texts, declared("drop")] = None
    rename: Annotated[Texts, declared("rename")] = None
    cast: Annotated[Texts, declared("cast")] = None
    map: Annotated[str | None, declared("map")] = None
    size: Annotated[Texts, declared("sizes")] = None
    reverse: Annotated[bool, declared("reverse")] = False

    def parsed(self) -> dict[str, Any]:
        """The arguments of the library, in order; None or empty where an option is not given."""
        return {
            "select": self.select,
            "drop": self.drop,
            "rename": None if self.rename is None else renames(self.rename),
            "cast": None if self.cast is None else casts(self.cast),
            "map": self.map,
            "sizes": sizes(self.size),
            "reverse": self.reverse,
        }


def _type_of(option: Option, default: Any) -> Any:
    """The type from which typer knows how to parse the words of a kind."""
    if option.kind == "flag":
        return bool
    if option.kind in ("patterns", "pairs", "sizes"):
        return Texts
    if option.kind == "choice":
        return option.words
    if option.kind == "size":
        return int | None
    return str if default else str | None


def _parameters(is_plan: bool, without: Collection[str]) -> list[Parameter]:
    """Every option, in the order of the help."""
    found = []
    for argument, option in OPTIONS.items():
        if (is_plan and not option.is_planned) or argument in without:
            continue
        name = _NAMES.get(argument, argument)
        default = default_of(name)
        annotation: Any = Annotated[_type_of(option, default), declared(argument)]
        found.append(Parameter(name, KEYWORD, default=default, annotation=annotation))
        if (
            name == "missing_axes" and "target" not in without
        ):  # --target stands for the options above it
            found += shown_fields(Targets)
    return found


def takes_target_options(
    *, is_plan: bool = False, after: str = "item", without: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Gives a command every option of a target but those of ``without``, behind its parameter ``after``, in place of its ``**given``."""

    def decorate(command: Command) -> Command:
        whole = spread(command)
        own = signature(whole)
        *shown, _ = own.parameters.values()
        at = list(own.parameters).index(after) + 1
        parameters = [*shown[:at], *_parameters(is_plan, without), *shown[at:]]
        whole.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it; no type declares it
        return whole

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
