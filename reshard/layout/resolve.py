"""Finds the slices of a tensor by a layout file, and the rules that decided.

Partitions are tried before rules, since they replace mesh axes; among each of them the first match wins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from reshard.errors import LayoutError
from reshard.geometry.grid import Grid
from reshard.layout.axes import Axis, show_axes
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.layout_file import LayoutFile, PartitionRule, Rule, named
from reshard.layout.partitioners import div_cuts
from reshard.layout.tensor_layout import TensorLayout


class Resolved(Struct, frozen=True):
    """The layout or partition of one tensor, and the rule that decided.

    Attributes:
        layout: one entry per dimension, over the file's mesh; unsplit if a partition splits the tensor.
        partition: strategy, amount, axis and number of shards, if a partition splits the tensor.
        slices: the grid of the slices.
        rule_index: position in ``rules`` of the rule that decided, or None.
        partition_index: position in ``partitions`` of the one that decided, or None.
    """

    layout: TensorLayout
    partition: Mapping[str, Any] | None
    slices: Grid
    rule_index: int | None = None
    partition_index: int | None = None


class RuleOverlap(Struct, frozen=True):
    """Tensors that two rules match: ``winner`` is used; ``shadowed`` comes later and is ignored."""

    winner: str
    shadowed: str
    names: tuple[str, ...]


def layout_for(file: LayoutFile, name: str, shape: Sequence[int], dtype: str) -> Resolved:
    """The file's way to split a tensor; ``dtype`` matters for partitions by size.

    Axes shorter than the rank are padded with None on the right. A scalar is whole under any rule. Raises LayoutError, naming tensor,
    shape and rule.
    Causes are: more axes than dimensions, a dimension that does not divide, a partition axis out of range, a missing
    mesh, and a tensor without a rule under ``unmatched: error``.
    """
    matching = file.found.of(name)
    if matching and matching[0] < len(file.partitions) and shape:
        return _partitioned(file, matching[0], name, tuple(shape), dtype)
    if matching and matching[0] >= len(file.partitions):
        return _by_rule(file, matching[0] - len(file.partitions), name, tuple(shape))
    if file.unmatched == "error" and not matching:
        raise LayoutError(
            f"{name!r} of shape {list(shape)} matches no rule of {file.where}, which has "
            f"'unmatched: error'; add a rule for it or write 'unmatched: replicate'"
        )
    return Resolved(_replicated(file, len(shape)), None, Grid.whole(shape))


def unmatched_rules(file: LayoutFile, names: Iterable[str]) -> list[Rule | PartitionRule]:
    """The rules and partitions that match none of ``names``, even without earlier rules."""
    matching = {index for name in names for index in file.found.of(name)}
    return [rule for index, rule in enumerate(file.all_rules) if index not in matching]


def overlaps(file: LayoutFile, names: Iterable[str]) -> list[RuleOverlap]:
    """Each pair of rules that match the same tensors, the one that wins first."""
    rules = file.all_rules
    found: dict[tuple[int, int], list[str]] = {}
    for name in names:
        matching = file.found.of(name)
        for shadowed in matching[1:]:
            found.setdefault((matching[0], shadowed), []).append(name)
    return [
        RuleOverlap(named(rules[winner]), named(rules[shadowed]), tuple(shared))
        for (winner, shadowed), shared in found.items()
    ]


def _replicated(file: LayoutFile, rank: int) -> TensorLayout:
    return _padded((), rank, file.mesh)


def _by_rule(file: LayoutFile, index: int, name: str, shape: tuple[int, ...]) -> Resolved:
    rule = file.rules[index]
    # A scalar has only one layout, so any rule fits it: a rule for '.*' must not fail at a step counter.
    axes = rule.axes if shape else ()
    if len(axes) > len(shape):
        raise LayoutError(
            f"{name!r} of shape {list(shape)}: {named(rule)} has more axes than dimensions, "
            f"{show_axes(axes)} for {len(shape)}; give this tensor an earlier rule of its own"
        )
    layout = _padded(tuple(axes), len(shape), file.mesh)
    return Resolved(layout, None, _slices(file, rule, layout, name, shape), rule_index=index)


@lru_cache(maxsize=1024)
def _padded(axes: tuple[Axis, ...], rank: int, mesh: DeviceMesh | None) -> TensorLayout:
    """One object for all tensors that a rule splits alike."""
    return TensorLayout((*axes, *[None] * (rank - len(axes))), mesh)


def _slices(
    file: LayoutFile, rule: Rule, layout: TensorLayout, name: str, shape: tuple[int, ...]
) -> Grid:
    if not any(layout.axes):
        return Grid.whole(shape)
    if file.mesh is None:
        raise LayoutError(
            f"{name!r}: {named(rule)} splits it by mesh axes {show_axes(rule.axes)}, but there is no "
            f"mesh; add 'mesh: {{axes: [...], shape: [...]}}' to {file.where} or name one (mesh)"
        )
    try:
        return layout.grid(shape, name)
    except LayoutError as error:
        raise LayoutError(f"{error}; see {named(rule)}") from None


def _partitioned(
    file: LayoutFile, index: int, name: str, shape: tuple[int, ...], dtype: str
) -> Resolved:
    rule = file.partitions[index]
    if not -len(shape) <= rule.axis < len(shape):
        raise LayoutError(
            f"{name!r} of shape {list(shape)}: {named(rule)} splits axis {rule.axis}, which it does not "
            f"have; give this tensor an earlier partition of its own, or narrow this one"
        )
    axis = rule.axis % len(shape)
    # An empty tensor has no elements to split and no shard size to keep.
    shards = rule.partitioner(shape, dtype, axis)[axis] if math.prod(shape) else 1
    cuts = tuple(div_cuts(n, shards if d == axis else 1) for d, n in enumerate(shape))
    partition = {
        "strategy": rule.strategy,
        rule.strategy: rule.amount,
        "axis": axis,
        "shards": shards,
    }
    return Resolved(
        _replicated(file, len(shape)), partition, Grid(shape, cuts), partition_index=index
    )
