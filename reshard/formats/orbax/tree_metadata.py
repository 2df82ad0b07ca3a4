"""The tree of an Orbax item: ``_METADATA``, ``_strings.json`` and ``array_metadatas/``.

``_METADATA`` lists every leaf with its path and the type of its value; shapes and dtypes are
elsewhere (``zarr_metadata``). Orbax names the files of a leaf by its path joined with dots (the
*param name*), which is ambiguous: ``{"a.b": {"c": …}}`` and ``{"a": {"b.c": …}}`` share files, and
stock Orbax mixes them up silently. Such trees are refused here. So are paths that collide once joined with
slashes, and names that would lead out of the checkpoint's folder.

``_sharding``: the mesh axes that split each array, as its saver had it.

A JSON object from urlsafe-base64 of the param name to *text* that is JSON again
(``_src/metadata/sharding.py`` of Orbax 0.12)::

    {"sharding_type": "NamedSharding", "shape": [4, 2], "axis_names": ["data", "model"],
     "axis_types": ["AxisType.Auto", "AxisType.Auto"], "partition_spec": [["data", "model"], null],
     "device_mesh": {"mesh": [[{"id": 0}, {"id": 1}], ...]}}
    {"sharding_type": "SingleDeviceSharding", "device_str": "cpu:3"}

Orbax 0.4.1 wrote the param name itself as the key. ``device_mesh`` is optional. A ``SingleDeviceSharding`` is not a layout; its
text is kept, and written again if the array stays on its device. Orbax restores no other kinds, so they are left out.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from reshard.errors import CorruptError, FormatError, LayoutError, shorten
from reshard.formats.contents import PathKey
from reshard.formats.limits import MAX_LEAVES, MAX_NAME_CHARACTERS, MAX_PATH_KEYS
from reshard.formats.orbax.container import array_name
from reshard.formats.orbax.metadata_files import MetadataFiles
from reshard.formats.safe_json import JsonCursor, expect, expect_sizes, expect_texts, json_value
from reshard.layout.axes import Axis
from reshard.layout.device_mesh import DeviceMesh
from reshard.layout.tensor_layout import TensorLayout
from reshard.storage.location import Location

SHARDING = "_sharding"

MAX_DEVICES = 1 << 20
"""Beyond any machine that exists; a larger mesh is damage or an attack."""

_NAMED = "NamedSharding"
_SINGLE = "SingleDeviceSharding"


class OneDevice(Struct, frozen=True):
    """An array on one device; ``text`` is its entry, which names the device."""

    text: str


Sharding = TensorLayout | OneDevice


def read_shardings(files: MetadataFiles, names: Container[str] = ()) -> Mapping[str, Sharding]:
    """The sharding of each array that has one, by param name; empty if there is no ``_sharding``.

    ``names`` are the param names of the item, which old versions wrote as they are.

    Equal shardings and meshes are one object, so 100,000 arrays on one mesh cost little memory.
    """
    data = files.read(SHARDING)
    if data is None:
        return {}
    cursor = JsonCursor(data, files.where(SHARDING))
    known: dict[str, Sharding | None] = {}
    meshes: dict[DeviceMesh, DeviceMesh] = {}
    shardings: dict[str, Sharding] = {}
    for key in cursor.members():
        name = _param_name(key, names, cursor.where)
        text = expect(cursor.value(), str, f"the sharding of {name!r}", cursor.where)
        if text not in known:
            known[text] = _shared(parse_sharding(text, name, cursor.where), meshes)
        if (sharding := known[text]) is not None:
            shardings[name] = sharding
    cursor.finish()
    return shardings


def _shared(sharding: Sharding | None, meshes: dict[DeviceMesh, DeviceMesh]) -> Sharding | None:
    if not isinstance(sharding, TensorLayout) or sharding.device_mesh is None:
        return sharding
    mesh = meshes.setdefault(sharding.device_mesh, sharding.device_mesh)
    return sharding if mesh is sharding.device_mesh else TensorLayout(sharding.axes, mesh)


def _param_name(key: str, names: Container[str], where: str) -> str:
    name = _decoded(key)
    if key in names and name not in names:
        return key
    if name is None:
        raise CorruptError(
            f"{where}: the key {shorten(key)} should be the base64 of an array's name, but is not"
        )
    return name


def _decoded(key: str) -> str | None:
    try:
        return base64.b64decode(key, altchars=b"-_", validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None


def parse_sharding(text: str, name: str, where: str) -> Sharding | None:
    """The sharding in one entry's text; None for another kind of sharding, for which Orbax 0.4.1 wrote an empty text.

    Raises CorruptError naming the array if the entry contradicts itself.
    """
    if not text:
        return None
    what = f"the sharding of {name!r}"
    place = f"{where}, {what}"
    fields = expect(json_value(text.encode("utf-8", "surrogatepass"), place), dict, what, where)
    if fields.get("sharding_type") == _SINGLE and isinstance(fields.get("device_str"), str):
        return OneDevice(text)
    if fields.get("sharding_type") != _NAMED:
        return None
    spec = expect(fields.get("partition_spec"), list, "partition_spec", place)
    try:
        mesh = _mesh(fields, place)
        axes = tuple(_axis(entry, place) for entry in spec)
        _check_axes(axes, mesh, place)
        layout = TensorLayout(axes, mesh)
    except LayoutError as error:
        raise CorruptError(f"{place} makes no sense: {error}") from error
    return layout


def _mesh(fields: Mapping[str, Any], place: str) -> DeviceMesh:
    shape = expect_sizes(fields.get("shape"), "the mesh's shape", place, smallest=1)
    names = expect_texts(fields.get("axis_names"), "axis_names", "an axis name", place)
    if len(names) != len(shape) or len(set(names)) != len(names):
        raise CorruptError(
            f"{place}: the mesh's shape {list(shape)} needs {len(shape)} different axis names, but "
            f"they are {shorten(names)}"
        )
    if math.prod(shape) > MAX_DEVICES:
        raise CorruptError(
            f"{place}: a mesh of {shorten(list(shape))} has more than {MAX_DEVICES:,} devices"
        )
    types, devices = fields.get("axis_types"), fields.get("device_mesh")
    kinds = None
    if types is not None:
        texts = expect_texts(types, "axis_types", "an axis type", place)
        kinds = [text.removeprefix("AxisType.") for text in texts]
    ids = None if devices is None else _device_ids(devices, shape, place)
    return DeviceMesh(shape, names, axis_types=kinds, device_ids=ids)


def _device_ids(devices: Any, shape: tuple[int, ...], place: str) -> list[int]:
    """The ids, row-major. Orbax on TPUs once recorded coordinates too, which are ignored."""
    nested = [expect(devices, dict, "device_mesh", place).get("mesh")]
    for size in shape:
        nested = [part for parts in nested for part in _parts(parts, size, place)]
    ids: list[int] = []
    for device in nested:
        number: Any = device.get("id") if type(device) is dict else None
        if type(number) is not int:  # calling expect for each of a million devices takes seconds
            expect(expect(device, dict, "a device", place).get("id"), int, "a device's id", place)
        ids.append(number)
    return ids


def _parts(parts: Any, size: int, place: str) -> list[Any]:
    found = expect(parts, list, "device_mesh", place)
    if len(found) != size:
        raise CorruptError(
            f"{place}: device_mesh should have the mesh's shape, but has {len(found)} entries where "
            f"an axis has {size}"
        )
    return found


def _axis(entry: Any, place: str) -> Axis:
    if entry is None or isinstance(entry, str):
        return entry
    names = expect(entry, list, "an entry of partition_spec", place)
    return tuple(expect(n, str, "an axis in partition_spec", place) for n in names) or None


def _check_axes(axes: Sequence[Axis], mesh: DeviceMesh, place: str) -> None:
    used = [n for axis in axes if axis for n in ((axis,) if isinstance(axis, str) else axis)]
    for name in used:
        if name not in mesh.axis_names or used.count(name) > 1:
            raise CorruptError(
                f"{place}: partition_spec should use each of the mesh's axes "
                f"({', '.join(mesh.axis_names)}) at most once, but uses {shorten(used)}"
            )


STRINGS = "_strings.json"
ARRAY_METADATAS = "array_metadatas"

_SEQUENCE, _DICT = 1, 2
_STRING_TYPE = "string"

EMPTY_TYPES = frozenset({"None", "Dict", "List", "Tuple", "NamedTuple"})
"""The types of leaves without a value, as in Orbax (``_src/metadata/empty_values.py``)."""

_ARRAY = {"value_type": "np.ndarray", "skip_deserialize": False}
"""Of an array for which nothing is recorded: stock Orbax gives a numpy array."""

_UNSAFE = re.compile(r"(?:\A|/)\.{0,2}(?:/|\Z)")
"""An empty part of a path, ``.`` or ``..``."""

_NO_TEXT = re.compile(r"[\0\ud800-\udfff]")
"""A NUL, or half a character of UTF-16."""


class MetadataLeaf(Struct, frozen=True):
    """One entry of ``_METADATA``, or of the file that has the tree in its place (``aggregate_tree``).

    Attributes:
        name: keys joined with slashes.
        param_name: keys joined with dots, which names its files.
        value: the recorded ``value_metadata``; equal ones are shared, so treat it as frozen.
    """

    name: str
    path: tuple[PathKey, ...]
    param_name: str
    value: Mapping[str, Any]

    @property
    def is_string(self) -> bool:
        return bool(self.value["value_type"] == _STRING_TYPE)

    @property
    def is_tensor(self) -> bool:
        """True for an array and a number. Skipped leaves have no value, or are refused (``aggregate_tree``)."""
        return not self.value["skip_deserialize"] and self.value["value_type"] != _STRING_TYPE

    @property
    def is_kept_elsewhere(self) -> bool:
        """True if it has a value, but no array of its own."""
        return self.value["skip_deserialize"] and self.value["value_type"] not in EMPTY_TYPES


class TreeMetadata(Struct, frozen=True):
    """The content of ``_METADATA``.

    Attributes:
        uses_zarr3: True if arrays have ``zarr.json``, else ``.zarray``.
        stores_fill: True if chunks that equal the fill value were stored, so that no chunk may be missing; False if it
            is not recorded.
        kept: metadata of the whole tree that is copied: ``custom_metadata``, and ``value_metadata_tree`` (rich types)
            if there is one.
        file: the name of the file that lists the leaves.
    """

    leaves: tuple[MetadataLeaf, ...]
    uses_zarr3: bool
    stores_fill: bool
    kept: Mapping[str, Any]
    file: str


def read_tree_metadata(files: MetadataFiles, name: str) -> TreeMetadata:
    """Read ``_METADATA``, the file of that name.

    Raises CorruptError for content that contradicts the format, FormatError for names that collide or lead out of
    the folder.
    """
    path = files.where(name)
    data = files.read(name)
    fields: dict[str, Any] = {}
    if data is None:
        leaves: tuple[MetadataLeaf, ...] = (_only_leaf(files.folder, path),)
    else:
        leaves = _read_members(JsonCursor(data, path), fields)
    refuse_collisions(leaves, path)
    flags = ("use_zarr3", "store_array_data_equal_to_fill_value")
    uses_zarr3, stores_fill = (
        fields.get(each) is not None and expect(fields[each], bool, each, path) for each in flags
    )
    return TreeMetadata(leaves, uses_zarr3, stores_fill, _kept(fields), name)


def _only_leaf(folder: Location, path: str) -> MetadataLeaf:
    """The leaf of an item that is one array; CorruptError, naming the file that is missing, for any other."""
    name = array_name(folder)
    if name is None:
        raise CorruptError(f"{path} is missing; restore it from a copy")
    refuse_unsafe(name, path)
    return MetadataLeaf(name, (PathKey(name),), name, _ARRAY)


def _read_members(cursor: JsonCursor, fields: dict[str, Any]) -> tuple[MetadataLeaf, ...]:
    """The leaves; every other member of the document goes to ``fields``."""
    leaves: tuple[MetadataLeaf, ...] | None = None
    for member in cursor.members():
        if member == "tree_metadata":
            leaves = tuple(_read_leaves(cursor))
        else:
            fields[member] = cursor.value()
    cursor.finish()
    if leaves is None:
        raise CorruptError(f"{cursor.where}: expected a list of leaves (tree_metadata), found none")
    return leaves


def _kept(fields: Mapping[str, Any]) -> dict[str, Any]:
    kept = {"custom_metadata": fields.get("custom_metadata")}
    if fields.get("value_metadata_tree") is not None:
        kept["value_metadata_tree"] = fields["value_metadata_tree"]
    return kept


def _read_leaves(cursor: JsonCursor) -> Iterator[MetadataLeaf]:
    """The leaves one by one; equal keys and equal values are one object, since most are alike."""
    keys: dict[tuple[str, int], PathKey] = {}
    values: dict[str, dict[str, Any]] = {}
    for number, title in enumerate(cursor.members()):
        if number >= MAX_LEAVES:
            raise FormatError(
                f"{cursor.where} lists more than {MAX_LEAVES:,} leaves, which is more than is read"
            )
        where = f"{cursor.where}, the entry of {title[:80]!r}"
        fields = expect(cursor.value(), dict, "it", where)
        value = expect(fields.get("value_metadata"), dict, "value_metadata", where)
        if (known := values.get(signature := repr(value))) is None:
            expect(value.get("value_type"), str, "value_type", where)
            expect(value.get("skip_deserialize"), bool, "skip_deserialize", where)
            known = values[signature] = value
        yield _leaf(_path(fields.get("key_metadata"), keys, where), known, where)


def _path(entries: Any, known: dict[tuple[str, int], PathKey], where: str) -> tuple[PathKey, ...]:
    found = expect(entries, list, "key_metadata", where)
    if len(found) > MAX_PATH_KEYS:
        raise FormatError(
            f"{where} nests {len(found)} levels deep; at most {MAX_PATH_KEYS} are read"
        )
    return tuple([_path_key(entry, known, where) for entry in found])


def _path_key(entry: Any, known: dict[tuple[str, int], PathKey], where: str) -> PathKey:
    fields = expect(entry, dict, "a part of key_metadata", where)
    key, key_type = fields.get("key"), fields.get("key_type")
    if type(key) is not str or type(key_type) is not int:
        key = expect(key, str, "key", where)
        key_type = expect(key_type, int, "key_type", where)
    if (found := known.get((key, key_type))) is not None:
        return found
    if key_type not in (_SEQUENCE, _DICT):
        raise FormatError(
            f"{where}: the key_type of {key!r} is {key_type}; known are {_SEQUENCE} (sequence) and "
            f"{_DICT} (dict)"
        )
    return known.setdefault((key, key_type), PathKey(key, key_type == _SEQUENCE))


def _leaf(path: tuple[PathKey, ...], value: Mapping[str, Any], where: str) -> MetadataLeaf:
    keys = [key.key for key in path]
    param_name = ".".join(keys)
    refuse_odd(param_name, where)
    return MetadataLeaf("/".join(keys), path, param_name, value)


def refuse_odd(param_name: str, where: str) -> None:
    """Raises FormatError for a name that neither files nor keys of a database can have."""
    if len(param_name) > MAX_NAME_CHARACTERS:
        raise FormatError(
            f"{where}: the name {shorten(param_name)} has {len(param_name):,} characters, but at most "
            f"{MAX_NAME_CHARACTERS:,} are read; rename that key in the program that saves the checkpoint"
        )
    if _NO_TEXT.search(param_name):
        raise _no_file(param_name, where)


def refuse_unsafe(param_name: str, where: str) -> None:
    """Raises FormatError for a name that, as a relative path, leads out of the folder or names no folder.

    A slash at its end is none of these: Orbax stores ``a/`` in the folder ``a``.
    """
    # A checkpoint that is one bare array keeps its files at the top.
    if param_name and _UNSAFE.search(param_name.removesuffix("/")):
        raise _no_file(param_name, where)


def _no_file(param_name: str, where: str) -> FormatError:
    return FormatError(
        f"{where}: the name {shorten(param_name)} cannot name files: it has an empty part, "
        "'.', '..', a NUL or a lone surrogate (half of a UTF-16 character); rename that key in the program that "
        "saves the checkpoint"
    )


def key_prefix(param_name: str) -> str:
    """The prefix of the keys of an array's files; "" for an array without a name, whose files are at the top."""
    return param_name if not param_name or param_name.endswith("/") else f"{param_name}/"


def refuse_collisions(leaves: Iterable[MetadataLeaf], where: str) -> None:
    """Raises FormatError, naming both paths, if two are equal once joined with dots or slashes."""
    by_dots: dict[str, MetadataLeaf] = {}
    by_slashes: dict[str, MetadataLeaf] = {}
    for leaf in leaves:
        for seen, joined in (
            (by_dots, key_prefix(leaf.param_name)),
            (by_slashes, leaf.name),
        ):
            if (other := seen.setdefault(joined, leaf)) is not leaf:
                raise FormatError(
                    f"{where}: the paths {_show(other.path)} and {_show(leaf.path)} both become "
                    f"{joined.removesuffix('/')!r} once joined, so their files or names cannot be told apart; rename "
                    "one of the keys in the program that saves the checkpoint"
                )


def _show(path: Sequence[PathKey]) -> str:
    return "(" + ", ".join(repr(key.key) for key in path) + ")"


def read_strings(files: MetadataFiles, leaves: Sequence[MetadataLeaf]) -> dict[str, str]:
    """The text of each string leaf by param name, from ``_strings.json``.

    Orbax writes them through JSON pointers made of the param name, so a slash in the name nests them.

    Raises CorruptError if a leaf's text is missing.
    """
    wanted = [leaf for leaf in leaves if leaf.is_string]
    if not wanted:
        return {}
    path = files.where(STRINGS)
    data = files.read(STRINGS)
    if data is None:
        raise CorruptError(
            f"{path} is missing, but {len(wanted)} leaves are strings, {wanted[0].name!r} among "
            "them; restore it from a copy"
        )
    document = expect(json_value(data, path), dict, "the strings", path)
    return {leaf.param_name: _string_at(document, leaf, path) for leaf in wanted}


def _string_at(document: Any, leaf: MetadataLeaf, where: str) -> str:
    value = document
    for part in leaf.param_name.split("/"):
        value = (
            value.get(part.replace("~1", "/").replace("~0", "~"))
            if isinstance(value, dict)
            else None
        )
    return expect(value, str, f"the text of {leaf.name!r}", where)


def read_ext_metadata(
    files: MetadataFiles, wanted: set[str]
) -> dict[str, Mapping[str, Any] | None]:
    """The ``ext_metadata`` (a PRNG key's implementation) by param name, from ``array_metadatas/``.

    Every process of a save writes a file about each of its arrays, so thousands of files repeat the same; files are
    read in the order of processes until each wanted name was found.
    """
    found: dict[str, Mapping[str, Any] | None] = {}
    for name in _process_files(files):
        if (data := files.read(name)) is not None:
            _read_process(JsonCursor(data, files.where(name)), wanted, found)
        if len(found) == len(wanted):
            break
    return found


def _read_process(
    cursor: JsonCursor, wanted: set[str], found: dict[str, Mapping[str, Any] | None]
) -> None:
    for member in cursor.members():
        if member != "array_metadatas":
            cursor.value()
            continue
        for _ in cursor.elements():
            name, ext = _array_metadata(cursor.value(), cursor.where)
            if name in wanted:
                found[name] = ext
    cursor.finish()


def _array_metadata(entry: Any, where: str) -> tuple[str, Mapping[str, Any] | None]:
    fields = expect(entry, dict, "an entry of array_metadatas", where)
    array = expect(fields.get("array_metadata"), dict, "array_metadata", where)
    name = expect(array.get("param_name"), str, "param_name", where)
    ext = array.get("ext_metadata")
    return name, None if ext is None else expect(ext, dict, f"ext_metadata of {name!r}", where)


def _process_files(files: MetadataFiles) -> list[str]:
    folder = files.folder / ARRAY_METADATAS
    if ARRAY_METADATAS not in files.names or not folder.is_folder():
        return []
    names = [e.name for e in folder.entries() if e.name.startswith("process_")]
    return [f"{ARRAY_METADATAS}/{name}" for name in sorted(names, key=lambda n: (len(n), n))]
