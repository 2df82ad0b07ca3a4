"""Reads a map from right to left, where that leaves nothing open."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from reshard.errors import PlanError
from reshard.maps.expression import Expression, parse_expression
from reshard.maps.rule import MapFile, MapRule
from reshard.maps.shape import AxisItem, AxisItems, Parts, RuleShape, TensorAxes, names_of


def reversed_rules(file: MapFile, sizes: Mapping[str, int]) -> tuple[MapRule, ...]:
    """The rules by which the sources come back from the targets.

    Casts are left out: dtypes stay the same. Raises PlanError, naming the rule, for facts that the targets do not tell.
    """
    if file.changes.drop:
        raise PlanError(
            f"{file.where}: the map drops {file.changes.drop[0]!r}, which cannot be restored; take drop out of it (drop on the command line "
            "leaves tensors out as well), or read it forwards"
        )
    for key in ("select", "rename"):
        if getattr(file.changes, key):
            raise PlanError(
                f"{file.where}: the map has {key}, which nothing undoes; take it out of the map, or read it forwards"
            )
    return tuple(_reversed(rule, sizes) for rule in file.rules)


def _reversed(rule: MapRule, sizes: Mapping[str, int]) -> MapRule:
    _refuse_what_is_lost(rule)
    _refuse_repeats(rule)
    shape, pad, crop = _turned_lengths(rule, sizes)
    return replace(
        rule,
        sources=rule.targets,
        targets=rule.sources,
        shape=shape,
        multiply=rule.divide,
        divide=rule.multiply,
        add=_undone(rule),
        pad=pad,
        crop=crop,
        fill=rule.fill if pad else None,
        cast=None,
    )


def _refuse_what_is_lost(rule: MapRule) -> None:
    if rule.crop and rule.pad:
        raise _open(rule, "it has both pad and crop, and fill tells the number of the padding only")
    if rule.crop and rule.fill is None:
        raise _open(
            rule,
            f"its crop leaves out a part of {next(iter(rule.crop))!r}, which cannot be restored; if that part holds one number, give the "
            "number as fill",
        )
    if not rule.sources and rule.same_as is None:
        raise _open(
            rule, "its targets come from no source, and nothing says that they may be left out"
        )


def _turned_lengths(
    rule: MapRule, sizes: Mapping[str, int]
) -> tuple[RuleShape | None, dict[str, Expression], dict[str, Expression]]:
    """The shape from right to left, its pads, which are the rule's crops, and its crops, which are the rule's pads."""
    shape = None if rule.shape is None else rule.shape.turned
    pad: dict[str, Expression] = {}
    crop: dict[str, Expression] = {}
    for name in (*rule.pad, *rule.crop):
        was = "padded" if name in rule.pad else "cropped"
        counted = [one.text for one in rule.sources if name in one.all_names()]
        if counted:
            raise _open(rule, f"{name!r}, which counts the tensors {counted[0]!r}, is {was}")
        if name not in sizes:
            raise _open(
                rule,
                f"{name!r} is {was}, and the target does not tell its earlier length; give that as its size (sizes)",
            )
        if shape is not None:
            # The targets' dimension has another length than the size of that name.
            shape = _renamed(shape, name, f"{name}_{was}")
            (crop if name in rule.pad else pad)[f"{name}_{was}"] = parse_expression(name)
    return shape, pad, crop


def _open(rule: MapRule, why: str) -> PlanError:
    return PlanError(f"{rule.label}: it cannot be read backwards: {why}")


def _refuse_repeats(rule: MapRule) -> None:
    if rule.shape is None:
        return
    in_names = {name for template in rule.sources for name in template.all_names()}
    on_left = {name for side in rule.shape.left for name in names_of(side)} | in_names
    lone = [n for side in rule.shape.right for n in names_of(side) if n not in on_left]
    if lone:
        raise _open(
            rule,
            f"it repeats elements along {lone[0]!r}, and nothing says that all copies are equal",
        )


def _undone(rule: MapRule) -> Expression | None:
    if rule.add is None:
        return None
    times = "" if rule.divide is None else f"*({rule.divide.text})"
    over = "" if rule.multiply is None else f"/({rule.multiply.text})"
    return parse_expression(f"-({rule.add.text}){times}{over}")


def _renamed(shape: RuleShape, name: str, other: str) -> RuleShape:
    """The shape with another name for a dimension."""
    return RuleShape(
        tuple(_side(side, name, other) for side in shape.left),
        tuple(_side(side, name, other) for side in shape.right),
    )


def _side(side: TensorAxes, name: str, other: str) -> TensorAxes:
    return tuple(_axis(axis, name, other) for axis in side)


def _axis(axis: AxisItems, name: str, other: str) -> AxisItems:
    return tuple(_item(item, name, other) for item in axis)


def _item(item: AxisItem, name: str, other: str) -> AxisItem:
    if isinstance(item, str):
        return other if item == name else item
    return Parts(tuple(_axis(part, name, other) for part in item.parts))
