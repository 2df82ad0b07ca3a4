"""MapRule and MapFile: the content of a map, as ``read_map`` reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from reshard.layout.changes import Changes
from reshard.layout.layout_file import LayoutFile
from reshard.maps.expression import Expression
from reshard.maps.shape import RuleShape, names_of
from reshard.maps.template import Template

MAX_SIZE = 1 << 40
"""Longest dimension."""

Lengths = Mapping[str, Expression]
"""The length of a dimension, by its name: a number, or arithmetic with sizes."""


class Refusal(Struct, frozen=True):
    """A pattern of source tensors that the map cannot convert.

    Attributes:
        reason: the reason, for the error.
        label: ``refuse[0] (llama.yaml:12)``, for messages.
    """

    match: str
    reason: str
    label: str = "refuse"


class MapRule(Struct, frozen=True):
    """A rule by which source tensors become target tensors.

    Attributes:
        sources: the names of the sources; none where an element fills the targets.
        targets: of the targets; none for ``same_as`` of a source.
        shape: the relation of their dimensions; None where they stay as they are.
        multiply, divide, add: arithmetic that each element passes through, in this order.
        pad: lengths of dimensions on the right side; elements that no source fills are ``fill``.
        crop: lengths of dimensions that are taken.
        fill: the number for elements that no source fills, or, read backwards, that a crop left out; None for 0, and where there are none.
        cast: dtype of the targets; None for the sources'.
        same_as: the tensor that a source must equal, or that a target copies.
        label: ``map[3] (llama.yaml:12)``, for messages.
    """

    sources: tuple[Template, ...] = ()
    targets: tuple[Template, ...] = ()
    shape: RuleShape | None = None
    multiply: Expression | None = None
    divide: Expression | None = None
    add: Expression | None = None
    pad: Lengths = field(default_factory=dict)
    crop: Lengths = field(default_factory=dict)
    fill: float | None = None
    cast: str | None = None
    same_as: Template | None = None
    label: str = "rule"

    def names(self) -> Iterator[str]:
        """Every name of a size, a dimension or an index in it; some more than once."""
        templates = (*self.sources, *self.targets, *((self.same_as,) if self.same_as else ()))
        for template in templates:
            yield from template.all_names()
        for side in (*self.shape.left, *self.shape.right) if self.shape is not None else ():
            yield from names_of(side)
        for lengths in (self.pad, self.crop):
            yield from lengths
        arithmetic = (self.multiply, self.divide, self.add)
        for expression in (*arithmetic, *self.pad.values(), *self.crop.values()):
            yield from () if expression is None else expression.names


class MapFile(Struct, frozen=True):
    """The rules of a map.

    Attributes:
        sizes: that no shape tells.
        mesh_sizes: names of sizes that are those of the target mesh's axes of the same name.
        refusals: source tensors that it cannot convert, and the reasons.
        changes: the map's own rules: select and drop for sources, rename and cast for targets.
        plain: the same as plain data, as ``parse_map`` reads it.
        about: its purpose, in words.
        where: its name in messages.
        layout: the layout of the targets, if the file has one.
    """

    rules: tuple[MapRule, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    mesh_sizes: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    changes: Changes = field(default_factory=Changes)
    plain: Mapping[str, object] = field(default_factory=dict)
    about: str = ""
    where: str = "map"
    layout: LayoutFile | None = None
