"""LayoutFile: the content of a layout file, as ``read_layout`` reads it, and the slices of a tensor by it.

A LayoutMap becomes one for a server (``map_as_file``); its keys must then be valid patterns of layout files.

Partitions are tried before rules, since they replace mesh axes; among each of them the first match wins.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, Literal, TypeVar

from msgspec import Struct

from reshard.errors import LayoutError
from reshard.geometry.grid import Grid
from reshard.layout.axes import Axis, known_axes, show_axes, used_axes
from reshard.layout.changes import Changes
from reshard.layout.device_mesh import DeviceMesh, mesh_document
from reshard.layout.layout_map import Unmatched
from reshard.layout.layout_text import Document
from reshard.layout.partitioners import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
    div_cuts,
)
from reshard.layout.tensor_layout import TensorLayout
from reshard.patterns.compile import FoundRules, Pattern, compile_pattern, shown

PartitionerName = Literal["fixed_shards", "min_size", "max_size"]
MissingAxes = Literal["error", "replicate"]
"""Treatment of axes that split tensors but are not in the mesh: raise an error, or replicate over them."""

REPLICATE_THEM = 'replicate the dimensions that they split (missing_axes="replicate")'
"""The remedy in errors about such axes."""

T = TypeVar("T")

CHANGE_KEYS = ("select", "drop", "rename", "cast")
LAYOUT_KEYS = ("mesh", "rules", "partitions", "unmatched")
MAP_KEYS = ("about", "sizes", "map", "refuse")
KEYS = (*LAYOUT_KEYS, *CHANGE_KEYS, *MAP_KEYS)


@dataclass(frozen=True)
class Rule:
    """A rule that splits tensors with a matching name by these mesh axes.

    Attributes:
        match: regular expression, searched for in the name.
        label: ``rules[0] 'embed' (layout.yaml:3)``, for messages; not compared.
    """

    match: str
    axes: tuple[Axis, ...]
    label: str = field(default="", compare=False)

    def compiled(self) -> Pattern:
        """Its pattern."""
        return compile_pattern(self.match, named(self), LayoutError)


@dataclass(frozen=True)
class PartitionRule:
    """A rule that splits tensors with a matching name along one axis, by count or by size.

    Attributes:
        amount: shards for ``fixed_shards``, bytes for ``min_size`` and ``max_size``.
        axis: the axis that is split; negative counts from the end.
    """

    match: str
    strategy: PartitionerName
    amount: int
    axis: int = 0
    max_shards: int | None = None
    label: str = field(default="", compare=False)

    def compiled(self) -> Pattern:
        """Its pattern."""
        return compile_pattern(self.match, named(self), LayoutError)

    @property
    def partitioner(self) -> Partitioner:
        """The partitioner that computes the number of shards."""
        if self.strategy == "fixed_shards":
            return FixedShardsPartitioner(self.amount)
        if self.strategy == "min_size":
            return MinSizePartitioner(self.amount, self.max_shards or 1)
        return MaxSizePartitioner(self.amount, self.max_shards)


def named(rule: Rule | PartitionRule) -> str:
    """The name of a rule in messages."""
    return rule.label or f"rule {shown(rule.match)}"


def labelled(label: str, make: Callable[[], T]) -> T:
    """The result of ``make``; its LayoutError is prefixed with the label."""
    try:
        return make()
    except LayoutError as error:
        raise LayoutError(f"{label}: {error}") from None


@dataclass(frozen=True)
class LayoutFile:
    """A parsed layout file.

    Making one with a mesh checks the axes of every rule against it.

    Attributes:
        map: the map from tensors to tensors (``maps.read_map``), if it has one; not read yet, not compared.
        where: its name in messages; not compared.
        replicated: axes that were removed from its rules because its mesh lacks them; for a warning, not compared.
    """

    mesh: DeviceMesh | None = None
    rules: tuple[Rule, ...] = ()
    partitions: tuple[PartitionRule, ...] = ()
    unmatched: Unmatched = "replicate"
    changes: Changes = field(default_factory=Changes)
    map: Document | None = field(default=None, compare=False)
    where: str = field(default="layout", compare=False)
    replicated: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        for rule in self.rules:
            labelled(named(rule), partial(TensorLayout, rule.axes, self.mesh))

    @property
    def all_rules(self) -> tuple[Rule | PartitionRule, ...]:
        """The rules of ``partitions``, then those of ``rules``; the first that matches a name decides."""
        return (*self.partitions, *self.rules)

    @cached_property
    def found(self) -> FoundRules:
        """The rules that match each name; results are kept for names that were looked up together."""
        return FoundRules(self.all_rules)

    @property
    def has_layout(self) -> bool:
        """True if it splits tensors; a file of only select, drop, rename and cast does not."""
        return bool(self.mesh or self.rules or self.partitions) or self.unmatched == "error"

    def with_mesh(self, mesh: DeviceMesh, missing_axes: MissingAxes = "error") -> LayoutFile:
        """The same rules over another mesh, such as that of ``--mesh``.

        With ``missing_axes="replicate"`` axes that the mesh lacks are removed from the rules; else they are a
        LayoutError.
        """
        lacking = self.lacking(mesh)
        if not lacking or missing_axes == "error":
            try:
                return replace(self, mesh=mesh)
            except LayoutError as error:
                raise LayoutError(
                    f"{error}; name the mesh's axes as the rules do, or {REPLICATE_THEM}"
                ) from None
        rules = tuple(replace(r, axes=known_axes(r.axes, mesh.axis_names)) for r in self.rules)
        return replace(self, mesh=mesh, rules=rules, replicated=lacking)

    def lacking(self, mesh: DeviceMesh) -> tuple[str, ...]:
        """The axes that rules name and ``mesh`` lacks."""
        used = (name for rule in self.rules for name in used_axes(rule.axes))
        return tuple(dict.fromkeys(name for name in used if name not in mesh.axis_names))


def layout_to_mapping(layout: LayoutFile) -> dict[str, Any]:
    """Plain data that ``parse_layout`` reads back to an equal value; empty sections are left out."""
    sections: dict[str, Any] = {
        "mesh": layout.mesh and mesh_document(layout.mesh),
        "rules": [
            {"match": r.match, "axes": [list(a) if isinstance(a, tuple) else a for a in r.axes]}
            for r in layout.rules
        ],
        "partitions": list(map(_partition_mapping, layout.partitions)),
        "unmatched": layout.unmatched,
        "select": list(layout.changes.select),
        "drop": list(layout.changes.drop),
        "rename": [{"match": m, "to": to} for m, to in layout.changes.rename],
        "cast": [{"match": m, "dtype": dtype} for m, dtype in layout.changes.cast],
        **({} if layout.map is None else layout.map.data),
    }
    return {key: section for key, section in sections.items() if section}


def _partition_mapping(rule: PartitionRule) -> dict[str, Any]:
    limit = {} if rule.max_shards is None else {"max_shards": rule.max_shards}
    return {"match": rule.match, rule.strategy: rule.amount, "axis": rule.axis, **limit}


_FORMS = {"search": "{}", "match": r"\A(?:{})", "fullmatch": r"\A(?:{})\Z"}
"""The pattern that is searched for a key, by how the map looks its keys up."""


def map_as_file(
    mesh: DeviceMesh | None,
    layouts: Mapping[str, TensorLayout],
    *,
    match: str,
    unmatched: Unmatched,
    is_first: bool,
) -> dict[str, Any]:
    """The content of a layout file that finds the same layouts as the map.

    Args:
        is_first: True if the first of several matching keys counts, as in a file.

    Raises LayoutError for a key that is not supported as a pattern of a file, and for a map that a file cannot
    express.
    """
    if not is_first and len(layouts) > 1:
        raise LayoutError(
            "a layout file uses the first rule that matches, but this LayoutMap refuses names that several keys match; "
            "make it with ambiguous='first'"
        )
    mesh = mesh and mesh.recorded
    patterns = {key: _pattern(key, match) for key in layouts}
    _check_one_mesh(mesh, layouts)
    exact = [key for key in layouts if _is_taken_by_others(key, patterns)]
    rules = [Rule(rf"\A{re.escape(key)}\Z", layouts[key].axes) for key in exact]
    rules += [Rule(pattern, layouts[key].axes) for key, pattern in patterns.items()]
    return layout_to_mapping(LayoutFile(mesh, tuple(rules), unmatched=unmatched))


def _check_one_mesh(mesh: DeviceMesh | None, layouts: Mapping[str, TensorLayout]) -> None:
    for key, layout in layouts.items():
        if layout.device_mesh is not None and layout.device_mesh.recorded != mesh:
            raise LayoutError(
                f"the key {shown(key)} has a layout over {layout.device_mesh}, and the map has {mesh or 'no mesh'}; a layout "
                "file has one mesh for all rules"
            )


def _pattern(key: str, match: str) -> str:
    pattern = _FORMS[match].format(key)
    compile_pattern(pattern, f"the key {shown(key)} of the LayoutMap", LayoutError)
    return pattern


def _is_taken_by_others(key: str, patterns: Mapping[str, str]) -> bool:
    """True if another key matches a tensor whose name equals this key; the map would find the equal key first."""
    others = (re.compile(pattern) for other, pattern in patterns.items() if other != key)
    return any(pattern.search(key) for pattern in others)


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
