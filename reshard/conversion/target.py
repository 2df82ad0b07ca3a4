"""Target: one target of a conversion, as the caller asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reshard.arguments import PairRules, Path, Rules
    from reshard.conversion.check_target import Check
    from reshard.formats.base import Style
    from reshard.layout.device_mesh import MeshLike
    from reshard.layout.layout_file import LayoutFile, MissingAxes
    from reshard.layout.layout_map import LayoutMap

    LayoutLike = Path | Mapping[str, Any] | LayoutFile | LayoutMap | Any | None
    """Any: a tree of TensorLayouts, jax shardings or jax.ShapeDtypeStructs."""


class Target(Struct, frozen=True):
    """One target of ``convert_all`` or ``plan_all``: its folder, and how it is to be made.

    Attributes: as the arguments of ``reshard.plan`` and ``reshard.convert`` of the same names.

    >>> Target("served", layout="serving.yaml", cast={"float": "bfloat16"}).check
    'written'
    """

    target: Path
    layout: LayoutLike = None
    mesh: str | MeshLike | None = None
    select: Rules = ()
    drop: Rules = ()
    rename: PairRules = ()
    cast: PairRules = ()
    compression: str = "none"
    chunk_bytes: int | str | None = None
    ocdbt: bool = False
    style: Style | None = None
    overwrite: bool = False
    check: Check = "written"
    restart: bool = False
    missing_axes: MissingAxes = "error"
