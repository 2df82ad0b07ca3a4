"""Checks a Target and parses its options, once, before anything is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

from msgspec import Struct, field

from reshard.arguments import MissingChunks, changes_of, check_choice, path_of
from reshard.conversion.declared_options import OF_EVERY_FORMAT
from reshard.conversion.options import Check, IdentityMode, Target
from reshard.engine.limits import Limits, check_limits
from reshard.errors import PlanError
from reshard.formats.known_formats import format_names, format_options, named_options
from reshard.formats.names import version_of_name
from reshard.layout.changes import Changes
from reshard.layout.layout_file import LayoutFile
from reshard.layout.layout_map import LayoutMap
from reshard.maps.given_map import GivenMap, map_and_layout
from reshard.planning.target_layouts import Layout, layout_of, mesh_over
from reshard.storage.hub.address import BUCKET_OF_HUB
from reshard.storage.location import Location, locate
from reshard.storage.targets import refuse_state


class CheckedTarget(Struct, frozen=True, dict=True):
    """A target with its options and the limits of its run, parsed.

    Attributes:
        layout: the place of every element; None keeps the source's layouts.
        changes: the rules of the layout file, then those of the target.
        given_map: the map that makes the target's tensors; None where each is one of the source's.
        to: name of the target's format; None for the source's.
        format_options: the options of every format, by name, parsed; the target's format uses only its own.
        missing_chunks, overwrite, check, identity, state, unsafe_commit: as in ConvertOptions.
        max_growth: as in Limits.
        target: its path; "" in a plan without one.
        restart: as in ConvertOptions.
    """

    max_memory: int
    workers: int
    layout: Layout | None = None
    changes: Changes = field(default_factory=Changes)
    given_map: GivenMap | None = None
    to: str | None = None
    format_options: Mapping[str, Any] = field(default_factory=lambda: parsed_options(Target("")))
    missing_chunks: MissingChunks | None = None
    overwrite: bool = False
    check: Check = "written"
    identity: IdentityMode | None = None
    state: str | None = None
    unsafe_commit: bool = False
    max_growth: float | None = None
    target: str = ""
    restart: bool = False

    def __post_init__(self) -> None:
        """Raises PlanError for a value that is wrong with any checkpoint."""
        check_limits(self.max_memory, self.workers)
        # Other distributions may add formats, whose names no type lists.
        check_choice("to", self.to, (None, *format_names(self.to)))
        for name in AS_ASKED:
            OF_EVERY_FORMAT[name].parse(name, getattr(self, name))

    @cached_property
    def place(self) -> Location:
        """The place of the target."""
        return locate(self.target)

    @property
    def version(self) -> str | None:
        """The version of the weights that the target's name gives."""
        return version_of_name(self.place.name) if self.target else None


AS_ASKED = tuple(
    name
    for name in CheckedTarget.__struct_fields__
    if name in OF_EVERY_FORMAT and name not in ("layout", "to", "restart")
)
"""Options that need no parsing."""


def check_target(asked: Target, limits: Limits) -> CheckedTarget:
    """A target with its options parsed. The rules of a layout file come before those of the target.

    Raises PlanError or LayoutError for options that make no sense with any checkpoint, StorageError for
    a target that is no path.
    """
    changes = changes_of(asked.select, asked.drop, asked.rename, asked.cast)
    given_map, own = None, asked.layout
    # Besides a map that is asked for, the file of a layout may have one.
    has_map = asked.map is not None or asked.sizes or asked.reverse
    if has_map or not isinstance(own, LayoutMap | None):
        given_map, own = map_and_layout(asked.map, asked.sizes, asked.reverse, asked.layout)
        if own is None and given_map is not None:
            own = given_map.layout
    layout = layout_of(own, asked.mesh, asked.missing_axes)
    if given_map is not None:
        given_map = given_map.over(mesh_over(layout))
    path = path_of("target", asked.target)
    if BUCKET_OF_HUB.fullmatch(path):
        path = str(locate(path))
    to, given = named_options(path, asked.to, parsed_options(asked))
    checked = CheckedTarget(
        max_memory=limits.max_memory,
        workers=limits.workers,
        layout=layout,
        changes=layout.changes + changes if isinstance(layout, LayoutFile) else changes,
        given_map=given_map,
        to=to,
        format_options=given,
        max_growth=limits.max_growth,
        target=path,
        restart=asked.restart,
        **{name: getattr(asked, name) for name in AS_ASKED},
    )
    if checked.state is not None:
        refuse_state(path)
    return checked


_PLAIN = Target("")
"""A target without options."""


def parsed_options(asked: Target) -> dict[str, Any]:
    """The options of every format, by name; PlanError for a value that makes no sense with any checkpoint."""
    found: dict[str, Any] = {}
    for name, option in format_options().items():
        value, default = getattr(asked, name), getattr(_PLAIN, name)
        found[name] = default_option(name) if value is default else option.parse(name, value)
    return found


@cache
def default_option(name: str) -> Any:
    """The default of an option of a format, parsed."""
    return format_options()[name].parse(name, getattr(_PLAIN, name))


def check_targets(asked: Sequence[Target], limits: Limits) -> list[CheckedTarget]:
    """Several targets, each checked by ``check_target``; PlanError unless there is at least one."""
    listed = list(asked) if isinstance(asked, Iterable) else []
    if not listed or not all(isinstance(one, Target) for one in listed):
        raise PlanError(f"targets is {asked!r}; expected a list of at least one reshard.Target")
    return [check_target(one, limits) for one in listed]
