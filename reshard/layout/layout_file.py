"""LayoutFile: the content of a layout file, as ``read_layout`` reads it: mesh, rules, partitions, and changes.

A LayoutMap becomes one for a server (``map_as_file``); its keys must then be valid patterns of layout files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, TypeVar

from reshard.errors import LayoutError
from reshard.layout.axes import Axis, known_axes, used_axes
from reshard.layout.changes import Changes
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.layout_map import Unmatched
from reshard.layout.layout_text import Document
from reshard.layout.partitioners import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
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
        "mesh": layout.mesh and _mesh_mapping(layout.mesh),
        "rules": [{"match": r.match, "axes": _plain_axes(r.axes)} for r in layout.rules],
        "partitions": list(map(_partition_mapping, layout.partitions)),
        "unmatched": layout.unmatched,
        "select": list(layout.changes.select),
        "drop": list(layout.changes.drop),
        "rename": [{"match": m, "to": to} for m, to in layout.changes.rename],
        "cast": [{"match": m, "dtype": dtype} for m, dtype in layout.changes.cast],
        **({} if layout.map is None else layout.map.data),
    }
    return {key: section for key, section in sections.items() if section}


def _mesh_mapping(mesh: DeviceMesh) -> dict[str, Any]:
    types = {} if mesh.axis_types is None else {"axis_types": list(mesh.axis_types)}
    ids = {} if mesh.device_ids is None else {"device_ids": list(mesh.device_ids)}
    return {"axes": list(mesh.axis_names), "shape": list(mesh.shape), **types, **ids}


def _plain_axes(axes: tuple[Axis, ...]) -> list[Any]:
    return [list(axis) if isinstance(axis, tuple) else axis for axis in axes]


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
