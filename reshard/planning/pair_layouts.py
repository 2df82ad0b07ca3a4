"""The layouts of scales and other companions in a target: they are cut as their codes are, without a rule of their own."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from reshard.errors import PlanError
from reshard.formats.quantized import Quantized, QuantizedPair, companion_axes, find_pairs
from reshard.geometry.grid import Grid
from reshard.layout.layout_file import LayoutFile
from reshard.layout.layout_map import LayoutMap
from reshard.layout.tensor_layout import TensorLayout
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.follow_codes import Specs, about_pair
from reshard.planning.target_layouts import (
    Layout,
    LayoutTree,
    TensorSplit,
    keeps_layouts,
    leaf_above,
    split,
)


class TargetPairs(Struct, frozen=True):
    """The codes and scales of a target.

    Attributes:
        pairs: by the names of their codes.
        splits: of the companions of codes that a layout cuts between blocks, by name.
    """

    pairs: Mapping[str, QuantizedPair] = {}
    splits: Mapping[str, TensorSplit] = {}

    @classmethod
    def of(
        cls, found: Quantized | None, specs: Specs, sources: Specs, layout: Layout | None
    ) -> TargetPairs:
        """Those among the tensors ``specs`` of a target.

        A dimension of a companion is cut as that of its codes; one that has a scale for all codes is whole, and so are companions without such
        dimensions. Left to the layout are those for which it has a rule that is not for the codes too.

        Args:
            found: the pairs of the source; None where it has none.
            sources: the source of each tensor, by the name in the target.

        Raises PlanError for a rule that cuts companions otherwise than their codes.
        """
        made = None if found is None else find_pairs(specs, lambda: found.config)
        if made is None:
            return cls()
        splits: dict[str, TensorSplit] = {}
        for pair in made.pairs.values() if not keeps_layouts(layout) else ():
            splits |= _splits(pair, specs, sources, layout)
        return cls(made.pairs, splits)


def _splits(
    pair: QuantizedPair, specs: Specs, sources: Specs, layout: Layout | None
) -> dict[str, TensorSplit]:
    """The splits of the companions of one tensor of codes."""
    codes, found = specs[pair.name], {}
    own = split(codes, sources[pair.name], layout)
    sides = zip(own.slices.cuts, pair.grain, strict=True)
    parts_block = any(cut % grain for cuts, grain in sides for cut in cuts[:-1])
    if own.layout is None or own.slices.count <= 1 or parts_block:
        return {}  # a cut inside a block is refused where it is new
    axes = (*own.layout.axes, *[None] * len(codes.shape))
    for role, name in pair.companions.items():
        companion = specs[name]
        along = companion_axes(pair, role, codes, companion)
        cut = TensorLayout([None if d is None else axes[d] for d in along], own.layout.device_mesh)
        alike = TensorSplit(cut, cut.grid(companion.shape, name))
        if not _has_own(layout, pair.name, name, sources[name]):
            found[name] = alike
            continue
        given = split(companion, sources[name], layout).slices
        if given.count > 1 and given != alike.slices:
            raise PlanError(
                f"{name!r} would be cut into {_parts(given)}, but {pair.name!r} into {_parts(own.slices)}: {about_pair(pair)}, and a slice of them "
                f"needs its own part of {_parts(alike.slices)}; leave the rule for {name!r} out, and it is cut with its codes (layout)"
            )
    return found


def _parts(grid: Grid) -> str:
    return f"{'×'.join(map(str, grid.parts))} parts"


def _has_own(layout: Layout | None, codes: str, companion: str, source: TensorSpec) -> bool:
    """True if a layout says something of a companion that it does not say of its codes."""
    if isinstance(layout, LayoutTree):
        return leaf_above(companion, layout.leaves) != leaf_above(codes, layout.leaves)
    if isinstance(layout, LayoutFile | LayoutMap):
        matching = layout.found.of if isinstance(layout, LayoutFile) else layout.match
        first = next(iter(matching(companion)), None)
        return first is not None and first not in matching(codes)
    return source.layout is not None
