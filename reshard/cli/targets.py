"""``--target LAYOUT=DST``: several targets of one conversion, as the command line names them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct

from reshard.cli.options import Misuse, halves
from reshard.options import OUTPUT

if TYPE_CHECKING:
    from reshard import Target

_MESH = re.compile(r"[^=,]+=\d+(,[^=,]+=\d+)*")

OptionalTarget = Annotated[
    str | None,
    typer.Argument(
        metavar="[DST]",
        show_default=False,
        help="Where the new checkpoint goes; it appears whole or not at all. Left out with --target.",
    ),
]
PlannedTarget = Annotated[
    str | None,
    typer.Argument(
        metavar="[DST]",
        show_default=False,
        help="Where the new checkpoint would go. Left out with --target, or for a plan that does not look at free space.",
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="LAYOUT=DST",
        help="Instead of DST, --layout and --mesh; once for each of several targets. The source is read "
        "once for all of them if memory allows. LAYOUT is a layout file, a mesh such as "
        "data=4,model=2, or nothing for the source's own layout. Split at the last '='; write '\\=' "
        "for one in DST. All other options apply to all targets.",
        rich_help_panel=OUTPUT,
    ),
]


class NamedTarget(Struct, frozen=True):
    """A target with the layout file or the mesh that was named for it."""

    dst: str
    layout: str | None = None
    mesh: str | None = None

    def target(self, options: Mapping[str, Any]) -> Target:
        """The target for the library; ``options`` are those of all targets."""
        from reshard import Target

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
