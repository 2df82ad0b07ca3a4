"""Reads layout files: the mesh, the rules that split tensors, and the changes of a conversion.

::

    mesh: {data: 4, model: 2}             # or {axes: [data, model], shape: [4, 2]}
    rules:                                # regex search in the tensor's name, first match wins
      - {match: "embed", axes: [[data, model], null]}
      - {match: ".*/kernel", axes: [null, model]}
    partitions:                           # by count or size; these come before rules
      - {match: "table/.*", fixed_shards: 6, axis: 0}
      - {match: "vocab/.*", max_size: 64MiB, max_shards: 32}
    unmatched: replicate                  # or: error
    select: ["^params/"]                  # the same words as on the command line
    drop: ["/mu$"]
    rename: [{match: "^params/", to: "model/"}]
    cast: [{match: "kernel$", dtype: bfloat16}]
    map: [{from: params/w, to: w}]        # a map, with about and sizes; see maps.read_map

Every error names file, line and key, the expected and the actual value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from functools import partial
from typing import Annotated, Any, cast, get_args

from msgspec import UNSET, Meta, Struct
from msgspec.structs import replace

from reshard.geometry.dtypes import STORED_DTYPES, dtype_name
from reshard.geometry.sizes import parse_bytes
from reshard.layout.changes import SATURATE, Changes, full_name, kind_of
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.layout_file import (
    MAP_KEYS,
    LayoutFile,
    PartitionerName,
    PartitionRule,
    Rule,
    labelled,
)
from reshard.layout.layout_map import Unmatched
from reshard.layout.layout_text import Document, dotted_keys, given_document, read_document
from reshard.layout.tensor_layout import TensorLayout
from reshard.patterns.compile import shown
from reshard.strict import Steps, says

_STRATEGIES: tuple[PartitionerName, ...] = get_args(PartitionerName)

_Regex = Annotated[str, says("a regular expression", min_length=1)]
_Regexes = Annotated[tuple[_Regex, ...], says("a list of regular expressions")]
_AxisName = Annotated[str, says("the name of a mesh axis", min_length=1)]
_Axis = Annotated[
    Annotated[str, Meta(min_length=1)] | tuple[_AxisName, ...] | None,
    says("null, the name of a mesh axis or a list of names"),
]
_Axes = Annotated[
    tuple[_Axis, ...],
    says("a list with an entry per dimension, such as [null, model] ([] replicates)"),
]
_Whole = Annotated[int, says("a whole number of at least 1", ge=1)]
_AxisSize = Annotated[int, says("the size of a mesh axis, a whole number of at least 1", ge=1)]
_Shards = Annotated[int, says("a number of shards of at least 1", ge=1)]
_SIZE = "a size of at least 1 byte such as 256KiB"
_Size = Annotated[Annotated[int, Meta(ge=1)] | str, says(_SIZE)]


class _Mesh(Struct, forbid_unknown_fields=True):
    axes: Annotated[list[_AxisName], says("a list of axis names")]
    shape: Annotated[list[_Whole], says("a list of sizes, one per axis")]
    axis_types: Annotated[
        list[Annotated[str, says("an axis type", min_length=1)]],
        says("a list, one per axis"),
    ] = []
    device_ids: Annotated[
        list[Annotated[int, says("a device id", ge=0)]],
        says("a list of device ids, one per device, row-major"),
    ] = []


class _Rule(Struct, forbid_unknown_fields=True):
    match: _Regex
    axes: _Axes


class _Partition(Struct, forbid_unknown_fields=True):
    """One of the three strategies is given; 0 is none, since no file may say it."""

    match: _Regex
    fixed_shards: _Shards = 0
    min_size: _Size = 0
    max_size: _Size = 0
    axis: Annotated[int, says("the number of a dimension")] = 0
    max_shards: _Shards = 0


class _Rename(Struct, forbid_unknown_fields=True):
    match: _Regex
    to: Annotated[str, says("the text that replaces the match")]


class _Cast(Struct, forbid_unknown_fields=True):
    match: _Regex
    dtype: Any


class Sections(Struct, forbid_unknown_fields=True):
    """The sections of a layout file, or of a map; those that a map alone has are read by ``maps.read_map``."""

    mesh: Any = UNSET
    rules: Annotated[tuple[_Rule, ...], says("a list of mappings with match and axes")] = ()
    partitions: Annotated[
        tuple[_Partition, ...],
        says(f"a list of mappings with match and one of {', '.join(_STRATEGIES)}"),
    ] = ()
    unmatched: Any = "replicate"
    select: _Regexes = ()
    drop: _Regexes = ()
    rename: Annotated[tuple[_Rename, ...], says("a list of mappings with match and to")] = ()
    cast: Annotated[tuple[_Cast, ...], says("a list of mappings with match and dtype")] = ()
    about: Any = UNSET
    sizes: Any = UNSET
    map: Any = UNSET
    refuse: Any = UNSET


def load_layout(path: str | os.PathLike[str]) -> LayoutFile:
    """Read a layout file: JSON if its name ends in ``.json``, else YAML.

    Raises StorageError if it cannot be read, LayoutError with file and line if it is wrong.
    """
    return layout_of_document(read_document(os.fspath(path)))


def given_layout(layout: Any) -> Any:
    """The ``layout`` argument of a call: a path is read as a layout file, anything else is returned as it is.

    Raises as ``load_layout``.
    """
    return load_layout(layout) if isinstance(layout, str | os.PathLike) else layout


def parse_layout(
    mapping: Mapping[str, Any], where: str = "layout", lines: Mapping[Steps, int] | None = None
) -> LayoutFile:
    """The layout file in plain data, such as a JSON body; ``where`` names it in errors."""
    return layout_of_document(given_document(mapping, where, lines))


def layout_of_document(document: Document) -> LayoutFile:
    """Builds the layout file of a document; LayoutError, with file and line, if it is wrong."""
    sections = document.read(Sections)
    for key in MAP_KEYS:
        if key in document.data and sections.map is UNSET:
            document.refuse((key,), "only a map has it, but the file has none (map); remove it")
    unmatched = document.choice(("unmatched",), "choice", sections.unmatched, get_args(Unmatched))
    return LayoutFile(
        mesh=None if sections.mesh is UNSET else _mesh(document),
        rules=tuple(_rule(document, ("rules", i), r) for i, r in enumerate(sections.rules)),
        partitions=tuple(
            _partition(document, ("partitions", i), p) for i, p in enumerate(sections.partitions)
        ),
        unmatched=cast("Unmatched", unmatched),
        changes=read_changes(document, sections),
        map=None if sections.map is UNSET else part_of(document, MAP_KEYS),
        where=document.where,
    )


def part_of(document: Document, keys: Collection[str]) -> Document:
    """The sections of a file with these names, at the same lines."""
    return replace(document, data={k: v for k, v in document.data.items() if k in keys})


def read_changes(document: Document, sections: Sections) -> Changes:
    """The rules in the sections select, drop, rename and cast of a file, as far as it has them."""
    for key in ("select", "drop"):
        for i, pattern in enumerate(getattr(sections, key)):
            document.compiled((key, i), pattern)
    return Changes(
        select=sections.select,
        drop=sections.drop,
        rename=tuple(_rename(document, ("rename", i), r) for i, r in enumerate(sections.rename)),
        cast=tuple(_cast(document, ("cast", i), c) for i, c in enumerate(sections.cast)),
    )


def _mesh(document: Document) -> DeviceMesh:
    """The mesh of a file: its axes and their shape, or sizes by name, in the order in which they are written."""
    label, given = f"{document.place(('mesh',))}: mesh", document.data["mesh"]
    if not isinstance(given, dict) or not given:
        document.expect(
            ("mesh",), "a mesh such as {data: 4, model: 2} or {axes: [data, model], shape: [4, 2]}"
        )
    if not set(given) & set(_Mesh.__struct_fields__):
        sizes = document.read(dict[Any, _AxisSize], ("mesh",))
        return labelled(label, lambda: DeviceMesh(tuple(sizes.values()), tuple(sizes)))
    mesh = document.read(_Mesh, ("mesh",))
    return labelled(
        label,
        lambda: DeviceMesh(
            mesh.shape,
            mesh.axes,
            axis_types=mesh.axis_types if "axis_types" in given else None,
            device_ids=mesh.device_ids if "device_ids" in given else None,
        ),
    )


def _label(document: Document, steps: Steps, match: str) -> str:
    document.compiled((*steps, "match"), match)
    return f"{dotted_keys(steps)} {shown(match)} ({document.place(steps)})"


def _rule(document: Document, steps: Steps, rule: _Rule) -> Rule:
    label = _label(document, steps, rule.match)
    return Rule(rule.match, labelled(label, partial(TensorLayout, rule.axes)).axes, label)


def _partition(document: Document, steps: Steps, rule: _Partition) -> PartitionRule:
    label = _label(document, steps, rule.match)
    given = [s for s in _STRATEGIES if getattr(rule, s) != 0]
    if len(given) != 1:
        document.refuse(
            steps, f"expected exactly one of {', '.join(_STRATEGIES)}, found {len(given)}"
        )
    strategy = given[0]
    if strategy == "fixed_shards" and rule.max_shards:
        document.refuse(
            (*steps, "max_shards"), "only min_size and max_size have a max_shards; remove it"
        )
    if strategy == "min_size" and not rule.max_shards:
        document.refuse(steps, "min_size needs max_shards, the number of shards to stop at")
    return PartitionRule(
        match=rule.match,
        strategy=strategy,
        amount=_amount(document, (*steps, strategy), getattr(rule, strategy)),
        axis=rule.axis,
        max_shards=rule.max_shards or None,
        label=label,
    )


def _amount(document: Document, steps: Steps, given: int | str) -> int:
    if not isinstance(given, str):
        return given
    size = labelled(f"{document.place(steps)}: {dotted_keys(steps)}", lambda: parse_bytes(given))
    return size if size >= 1 else document.expect(steps, _SIZE)


def _rename(document: Document, steps: Steps, rule: _Rename) -> tuple[str, str]:
    pattern = document.compiled((*steps, "match"), rule.match)
    try:
        pattern.replacement(rule.to)
    except (re.error, IndexError) as error:
        document.refuse(
            (*steps, "to"),
            f"{rule.to!r} cannot replace {rule.match!r}: {error}; use groups of the pattern such as \\1, and \\\\ for a backslash",
        )
    return rule.match, rule.to


def _cast(document: Document, steps: Steps, rule: _Cast) -> tuple[str, str]:
    document.compiled((*steps, "match"), rule.match)
    known = (*STORED_DTYPES, *(d + SATURATE for d in STORED_DTYPES if kind_of(d) == "float"))
    is_dtype = isinstance(rule.dtype, str) or dtype_name(rule.dtype) is not None
    dtype = full_name(rule.dtype) if is_dtype else rule.dtype
    return full_name(rule.match), document.choice((*steps, "dtype"), "dtype", dtype, known)
