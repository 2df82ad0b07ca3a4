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
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, cast, get_args

from msgspec.structs import replace

from reshard.geometry.dtypes import STORED_DTYPES, dtype_name
from reshard.geometry.sizes import parse_bytes
from reshard.layout.axes import Axis
from reshard.layout.changes import SATURATE, Changes, full_name, kind_of
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.layout_file import (
    KEYS,
    MAP_KEYS,
    LayoutFile,
    PartitionerName,
    PartitionRule,
    Rule,
    labelled,
)
from reshard.layout.layout_map import Unmatched
from reshard.layout.layout_text import Document, Steps, read_document
from reshard.layout.layout_value import CheckedValue
from reshard.layout.tensor_layout import TensorLayout
from reshard.patterns.compile import shown

T = TypeVar("T")


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
    data = dict(mapping) if isinstance(mapping, Mapping) else mapping
    return layout_of_document(Document(data, where, lines or {}))


def layout_of_document(document: Document) -> LayoutFile:
    """Builds the layout file of a document; LayoutError, with file and line, if it is wrong."""
    sections = CheckedValue(document.data, document).mapping(KEYS)
    for key in MAP_KEYS:
        if key in sections and "map" not in sections:
            sections[key].refuse("only a map has it, but the file has none (map); remove it")
    mesh = _mesh(sections["mesh"]) if "mesh" in sections else None
    unmatched = (
        sections["unmatched"].choice("choice", get_args(Unmatched))
        if "unmatched" in sections
        else "replicate"
    )
    return LayoutFile(
        mesh=mesh,
        rules=_each(sections, "rules", "mappings with match and axes", _rule),
        partitions=_each(
            sections,
            "partitions",
            f"mappings with match and one of {', '.join(get_args(PartitionerName))}",
            _partition,
        ),
        unmatched=cast("Unmatched", unmatched),
        changes=read_changes(sections),
        map=part_of(document, MAP_KEYS) if "map" in sections else None,
        where=document.where,
    )


def part_of(document: Document, keys: Collection[str]) -> Document:
    """The sections of a file with these names, at the same lines."""
    return replace(document, data={k: v for k, v in document.data.items() if k in keys})


def read_changes(sections: Mapping[str, CheckedValue]) -> Changes:
    """The rules in the sections select, drop, rename and cast of a file, as far as it has them."""
    return Changes(
        select=_each(sections, "select", "regular expressions", CheckedValue.regex),
        drop=_each(sections, "drop", "regular expressions", CheckedValue.regex),
        rename=_each(sections, "rename", "mappings with match and to", _rename),
        cast=_each(sections, "cast", "mappings with match and dtype", _cast),
    )


def _each(
    sections: Mapping[str, CheckedValue], key: str, kind: str, read: Callable[[CheckedValue], T]
) -> tuple[T, ...]:
    items = sections[key].items(f"a list of {kind}") if key in sections else []
    return tuple(map(read, items))


def _label(value: CheckedValue, match: str) -> str:
    return f"{value.key} {shown(match)} ({value.place})"


_MESH_KEYS = ("axes", "shape", "axis_types", "device_ids")


def _mesh(value: CheckedValue) -> DeviceMesh:
    if not isinstance(value.data, dict) or not value.data:
        value.expect("a mesh such as {data: 4, model: 2} or {axes: [data, model], shape: [4, 2]}")
    return _long_mesh(value) if set(value.data) & set(_MESH_KEYS) else _short_mesh(value)


def _short_mesh(value: CheckedValue) -> DeviceMesh:
    """Sizes by name: documents keep the order in which they are written."""
    sizes = {
        name: value.at(name).whole("the size of a mesh axis, a whole number of at least 1", least=1)
        for name in value.data
    }
    return labelled(f"{value.place}: mesh", lambda: DeviceMesh(tuple(sizes.values()), tuple(sizes)))


def _long_mesh(value: CheckedValue) -> DeviceMesh:
    parts = value.mapping(_MESH_KEYS, required=("axes", "shape"))
    names = [v.text("the name of a mesh axis") for v in parts["axes"].items("a list of axis names")]
    sizes = [
        v.whole("a whole number of at least 1", least=1)
        for v in parts["shape"].items("a list of sizes, one per axis")
    ]
    types = None
    if "axis_types" in parts:
        types = [v.text("an axis type") for v in parts["axis_types"].items("a list, one per axis")]
    ids = None
    if "device_ids" in parts:
        expected = "a list of device ids, one per device, row-major"
        ids = [v.whole("a device id", least=0) for v in parts["device_ids"].items(expected)]
    return labelled(
        f"{value.place}: mesh",
        lambda: DeviceMesh(sizes, names, axis_types=types, device_ids=ids),
    )


def _rule(value: CheckedValue) -> Rule:
    parts = value.mapping(("match", "axes"), required=("match", "axes"))
    match = parts["match"].regex()
    expected = "a list with an entry per dimension, such as [null, model] ([] replicates)"
    axes = tuple(map(_axis, parts["axes"].items(expected)))
    label = _label(value, match)
    return Rule(match, labelled(label, lambda: TensorLayout(axes)).axes, label)


def _axis(value: CheckedValue) -> Axis:
    if value.data is None or (isinstance(value.data, str) and value.data):
        return value.data
    expected = "null, the name of a mesh axis or a list of names"
    return tuple(v.text("the name of a mesh axis") for v in value.items(expected))


def _partition(value: CheckedValue) -> PartitionRule:
    strategies: tuple[PartitionerName, ...] = get_args(PartitionerName)
    parts = value.mapping(("match", *strategies, "axis", "max_shards"), required=("match",))
    match = parts["match"].regex()
    given = [s for s in strategies if s in parts]
    if len(given) != 1:
        value.refuse(f"expected exactly one of {', '.join(strategies)}, found {len(given)}")
    strategy = given[0]
    if strategy == "fixed_shards" and "max_shards" in parts:
        parts["max_shards"].refuse("only min_size and max_size have a max_shards; remove it")
    if strategy == "min_size" and "max_shards" not in parts:
        value.refuse("min_size needs max_shards, the number of shards to stop at")
    return PartitionRule(
        match=match,
        strategy=strategy,
        amount=_shards(parts[strategy]) if strategy == "fixed_shards" else _size(parts[strategy]),
        axis=parts["axis"].whole("the number of a dimension") if "axis" in parts else 0,
        max_shards=_shards(parts["max_shards"]) if "max_shards" in parts else None,
        label=_label(value, match),
    )


def _shards(value: CheckedValue) -> int:
    return value.whole("a number of shards of at least 1", least=1)


def _size(value: CheckedValue) -> int:
    expected = "a size of at least 1 byte such as 256KiB"
    if not isinstance(value.data, str):
        return value.whole(expected, least=1)
    size = labelled(f"{value.place}: {value.key}", lambda: parse_bytes(value.data))
    return size if size >= 1 else value.expect(expected)


def _rename(value: CheckedValue) -> tuple[str, str]:
    parts = value.mapping(("match", "to"), required=("match", "to"))
    pattern = parts["match"].compiled()
    to, match = parts["to"].data, pattern.pattern
    if not isinstance(to, str):
        parts["to"].expect("the text that replaces the match")
    try:
        pattern.replacement(to)
    except (re.error, IndexError) as error:
        parts["to"].refuse(
            f"{to!r} cannot replace {match!r}: {error}; use groups of the pattern such as \\1, and \\\\ for a backslash"
        )
    return match, to


def _cast(value: CheckedValue) -> tuple[str, str]:
    parts = value.mapping(("match", "dtype"), required=("match", "dtype"))
    known = (*STORED_DTYPES, *(d + SATURATE for d in STORED_DTYPES if kind_of(d) == "float"))
    given = parts["dtype"]
    is_dtype = isinstance(given.data, str) or dtype_name(given.data) is not None
    named = CheckedValue(full_name(given.data), given.document, given.steps) if is_dtype else given
    return full_name(parts["match"].regex()), named.choice("dtype", known)
