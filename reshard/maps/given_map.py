"""GivenMap: a map with the sizes that were given for it, read forwards or backwards."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from msgspec import Struct, structs

from reshard.errors import LayoutError, MissingError, PlanError, shorten
from reshard.formats.quantized import Config
from reshard.layout.bridges.from_keras import own_layout
from reshard.layout.changes import Changes
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.layout_file import KEYS, LayoutFile
from reshard.layout.layout_map import LayoutMap
from reshard.layout.read_layout import given_layout, parse_layout
from reshard.layout.tensor_spec import TensorSpec
from reshard.maps.expression import Expression, parse_expression
from reshard.maps.mapped import Mapped, apply_rules
from reshard.maps.read_map import load_map, map_of_document, parse_map, recipe, recipe_names
from reshard.maps.rule import MAX_SIZE, MapFile, MapRule, Refusal
from reshard.maps.shape import AxisItem, AxisItems, Parts, RuleShape, TensorAxes, names_of
from reshard.patterns.compile import compile_pattern


class GivenMap(Struct, frozen=True):
    """A map that was asked for.

    Attributes:
        rules: in the direction that was asked for.
        sizes: those of the file, and those that were given, which take precedence.
    """

    file: MapFile
    rules: tuple[MapRule, ...]
    sizes: Mapping[str, int]
    reverse: bool = False

    @property
    def changes(self) -> Changes:
        """The drop and cast rules of the file; none backwards."""
        return Changes() if self.reverse else self.file.changes

    @property
    def layout(self) -> LayoutFile | None:
        """The file's layout of the targets, if it has one; None backwards."""
        return None if self.reverse else self.file.layout

    def __repr__(self) -> str:
        """The map as one line, by which two are compared."""
        return json.dumps(self.plain, sort_keys=True, separators=(",", ":"))

    @property
    def plain(self) -> dict[str, Any]:
        """The map, its sizes and its direction as plain data; ``map_of`` reads it back."""
        return {"map": self.file.plain, "sizes": dict(self.sizes), "reverse": self.reverse}

    def over(self, mesh: DeviceMesh | None) -> GivenMap:
        """The map with the sizes that its file takes from the target mesh; PlanError for one that was given otherwise."""
        if self.reverse or mesh is None:
            return self
        axes = dict(zip(mesh.axis_names, mesh.shape, strict=True))
        found = {name: axes[name] for name in self.file.mesh_sizes if name in axes}
        for name, size in found.items():
            if self.sizes.get(name, size) != size:
                raise PlanError(
                    f"the size {name!r} is given as {self.sizes[name]}, but the mesh has {size} along {name!r}, which is this size in "
                    f"{self.file.where}; leave the size out (sizes), or give another mesh"
                )
        return structs.replace(self, sizes={**self.sizes, **found})

    def applied(
        self,
        specs: Mapping[str, TensorSpec],
        keys: Collection[str] = (),
        config: Callable[[], Config | None] = lambda: None,
    ) -> Mapped:
        """The targets that it makes of these tensors; see ``apply_rules``.

        PlanError for tensors that the file refuses, and for sizes of a mesh that were not given.
        """
        if not self.reverse:
            _refuse(self.file.refusals, specs)
            _check_known(self)
        return apply_rules(self.rules, self.sizes, specs, keys, config)


def _check_known(given: GivenMap) -> None:
    of_mesh = given.file.mesh_sizes
    if not set(of_mesh) <= given.sizes.keys():
        raise PlanError(
            f"{given.file.where}: the sizes {', '.join(of_mesh)} are those of the target's mesh; give a mesh with these axes (mesh), such as "
            f"{','.join(f'{name}=2' for name in of_mesh)}, or, where nothing is written, the sizes (sizes)"
        )


def _refuse(refusals: Sequence[Refusal], names: Iterable[str]) -> None:
    for refusal in refusals:
        pattern = compile_pattern(refusal.match, refusal.label, LayoutError)
        refused = [name for name in names if pattern.search(name)]
        if refused:
            more = f" and {len(refused) - 1:,} more" if len(refused) > 1 else ""
            raise PlanError(f"{refusal.label}: {refused[0]!r}{more}: {refusal.reason}")


def map_of(given: Any, sizes: Any = None, reverse: bool = False) -> GivenMap | None:
    """The map that was asked for: a recipe's name, the path of a file, its content as a mapping, or its text of several lines.

    Raises LayoutError or StorageError for a file that is wrong, PlanError for other arguments that make no sense.
    """
    checked = _sizes(sizes)
    if given is None:
        if checked or reverse:
            what = "sizes are" if checked else "reverse is"
            raise PlanError(f"{what} for a map, but no map is given; name one (map)")
        return None
    file = _file(given)
    every = {**file.sizes, **checked}
    rules = reversed_rules(file, every) if reverse else file.rules
    _refuse_unused(file, rules, checked)
    return GivenMap(file, rules, every, bool(reverse))


def _refuse_unused(file: MapFile, rules: Sequence[MapRule], sizes: Mapping[str, int]) -> None:
    """Raises PlanError for a size that no rule names; rules that are read backwards have names of padded lengths, too."""
    named = {name for rule in (*file.rules, *rules) for name in rule.names()}
    known = {*file.sizes, *file.mesh_sizes, *named}
    unused = [name for name in sizes if name not in known]
    if unused:
        raise PlanError(
            f"the size {unused[0]!r} is in no rule of {file.where}, which has {', '.join(sorted(known)) or 'no sizes'}; correct it, or leave it "
            "out (sizes)"
        )


def map_and_layout(
    given: Any, sizes: Any, reverse: bool, layout: Any
) -> tuple[GivenMap | None, Any]:
    """The map and the layout that were asked for, where the layout's file may say both.

    ``layout``: as for ``layout_of``, or a path. The file's changes stay with the layout. Raises as ``map_of`` and
    ``load_layout``; PlanError for two maps, and for one in a layout file that is to be read backwards.
    """
    layout = given_layout(own_layout(layout))
    if _is_content_with_map(layout):
        layout = parse_layout(layout)
    if not isinstance(layout, LayoutFile) or layout.map is None:
        return map_of(given, sizes, reverse), layout
    if given is not None:
        raise PlanError(
            f"{layout.where} has a map, and another one is given; leave one out (layout or map)"
        )
    if reverse:
        raise PlanError(
            f"{layout.where} says how the targets of its map are split, which backwards are its sources; give the file as "
            "the map (map), of which nothing else counts backwards, and another layout"
        )
    return map_of(map_of_document(layout.map), sizes), replace(layout, map=None)


def _is_content_with_map(layout: Any) -> bool:
    is_content = isinstance(layout, Mapping) and not isinstance(layout, LayoutMap)
    return is_content and "map" in layout and set(layout) <= set(KEYS)


def _file(given: Any) -> MapFile:
    if isinstance(given, MapFile):
        return given
    if isinstance(given, Mapping) or (isinstance(given, str) and "\n" in given):
        return parse_map(given)
    if isinstance(given, str) and given in recipe_names():
        return recipe(given)
    if isinstance(given, str | os.PathLike):
        try:
            return load_map(given)
        except MissingError as error:
            raise _missing_map(os.fspath(given), error) from None
    raise PlanError(
        f"map is {shorten(given)}; expected the path of a map file, or its content as a mapping or text"
    )


def _missing_map(given: str, error: MissingError) -> MissingError:
    """The error where there is no such file; it names the nearest recipe, where a recipe may be meant."""
    if "/" in given or given.endswith((".yaml", ".yml", ".json")):
        return error
    near = get_close_matches(given[:100], recipe_names(), n=1)
    said = f"; the nearest recipe is {near[0]!r}" if near else ""
    return MissingError(
        f"map {given!r} is no recipe, and no file of that name is here{said}; reshard recipes lists them"
    )


def _is_size(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= MAX_SIZE


def _sizes(sizes: Any) -> dict[str, int]:
    items = sizes.items() if isinstance(sizes, Mapping) else sizes or ()
    found: dict[str, int] = {}
    try:
        pairs = [(name, size) for name, size in items]
    except (TypeError, ValueError):
        raise PlanError(
            f"sizes is {sizes!r}; expected names and whole numbers, such as {{'heads': 32}}"
        ) from None
    for name, size in pairs:
        if not (isinstance(name, str) and name.isidentifier() and _is_size(size)):
            raise PlanError(
                f"sizes has {name!r}: {size!r}; expected a name and a whole number from 1 to 2^40, such as heads=32 (sizes)"
            )
        found[name] = size
    return found


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
    return structs.replace(
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
