"""SaveOptions: the options of a save, checked once; and the layouts that a caller gives for the numpy arrays of a tree, to be recorded.

A jax array has its own layout, even on one device; a layout given for it must be equal. Calls that need jax are refused if it is not
installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.arguments import bytes_of, check_choice, check_positive
from reshard.engine.limits import limits_of
from reshard.errors import LayoutError, MissingPackageError, PlanError, TreeError
from reshard.formats.chunking import SPLIT_ABOVE_BYTES, object_chunk_bytes
from reshard.formats.contents import CODECS, Encoding, Style, parse_compression
from reshard.formats.format import refuse_database
from reshard.formats.orbax.format import OrbaxForm
from reshard.geometry.grid import Grid
from reshard.layout.axes import show_axes
from reshard.layout.bridges.from_keras import is_from_keras, own_layout
from reshard.layout.bridges.jax_sharding import layout_from_sharding
from reshard.layout.device_mesh import DeviceMesh, as_mesh, is_other_mesh
from reshard.layout.layout_file import LayoutFile, layout_for
from reshard.layout.layout_map import LayoutMap
from reshard.layout.read_layout import given_layout
from reshard.layout.tensor_layout import TensorLayout
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.target_layouts import Layout, SameAxes, TensorSplit, layout_of, look_up, split
from reshard.saving.tensors import LiveTensor
from reshard.saving.tree import flatten, key_path
from reshard.storage.base import ON_DISK, Traits
from reshard.storage.location import locate
from reshard.version import how_to_install

GivenLayouts = Layout | Mapping[str, TensorLayout] | None
"""Layouts by rule, or by the tensors' names."""


def given_layouts(layout: Any) -> GivenLayouts:
    """The ``layout`` argument of ``save``: a LayoutMap, a layout file, or a tree of layouts.

    Raises LayoutError for anything else, TreeError for a tree that jax cannot flatten.
    """
    layout = own_layout(layout)
    if layout is None or isinstance(layout, LayoutMap | LayoutFile | str):
        return layout_of(given_layout(layout), None)
    leaves = [] if hasattr(layout, "__fspath__") else flatten(layout)
    if not any(_is_layout(value) for _, value in leaves):
        return layout_of(given_layout(layout), None)
    return {key_path(keys): _one(key_path(keys), v) for keys, v in leaves if v is not None}


def _is_layout(value: Any) -> bool:
    from jax.sharding import Sharding

    return isinstance(value, TensorLayout | Sharding) or is_from_keras(value, "TensorLayout")


def _one(name: str, value: Any) -> TensorLayout:
    value = own_layout(value)
    if isinstance(value, TensorLayout):
        return value
    try:
        return layout_from_sharding(value)
    except LayoutError as error:
        raise LayoutError(f"the layout given for {name!r}: {error}") from None


def reader_layouts(layouts: Any) -> tuple[Layout, ...]:
    """The ``chunks_for`` argument: LayoutMaps, layout files, or meshes (the tensors' own axes over them)."""
    if isinstance(layouts, str | Mapping) or not isinstance(layouts, Iterable):
        raise LayoutError(
            f"chunks_for is {layouts!r}; expected a list of LayoutMaps, layout files or DeviceMeshes"
        )
    return tuple(_reader_layout(layout) for layout in layouts)


def _reader_layout(layout: Any) -> Layout:
    if isinstance(layout, DeviceMesh) or is_other_mesh(layout):
        return SameAxes(as_mesh(layout))
    found = layout_of(given_layout(layout), None)
    if found is None:
        raise LayoutError(
            "chunks_for contains None; expected a LayoutMap, a layout file or a DeviceMesh"
        )
    return found


def with_given_layouts(tensors: Sequence[LiveTensor], given: GivenLayouts) -> list[LiveTensor]:
    """The tensors; those without their own layout take the given one.

    Raises TreeError, naming all of them, if a layout contradicts an array's own sharding or is given for
    a tensor that is not there; LayoutError if one does not fit its tensor.
    """
    if given is None:
        return list(tensors)
    if isinstance(given, LayoutFile):
        look_up(given, [t.name for t in tensors])
    _refuse_unknown(given, tensors)
    _refuse_contradictions(given, tensors)
    return [_with_layout(t, given) if _takes_layout(t) else t for t in tensors]


def _takes_layout(tensor: LiveTensor) -> bool:
    kind = tensor.leaf.meta["value_metadata"]["value_type"]
    return bool(kind == "np.ndarray") and tensor.partition is None


def _with_layout(tensor: LiveTensor, given: GivenLayouts) -> LiveTensor:
    found = _split(tensor, given)
    if found is None:
        return tensor
    slices = None if found.partition is None else found.slices
    return replace(
        tensor,
        layout=found.layout,
        chunked_as=found.slices,
        slices=slices,
        partition=found.partition,
    )


def _split(tensor: LiveTensor, given: GivenLayouts) -> TensorSplit | None:
    if isinstance(given, Mapping) and not isinstance(given, LayoutMap):
        layout = given.get(tensor.name)
        return (
            None if layout is None else TensorSplit(layout, layout.grid(tensor.shape, tensor.name))
        )
    return split(bare_spec(tensor), bare_spec(tensor), given)


def bare_spec(tensor: LiveTensor) -> TensorSpec:
    """The tensor's spec before its chunks are chosen."""
    whole = Grid.whole(tensor.shape)
    return TensorSpec(tensor.name, tensor.shape, tensor.dtype, whole, layout=tensor.layout)


def _refuse_unknown(given: GivenLayouts, tensors: Sequence[LiveTensor]) -> None:
    if isinstance(given, LayoutMap) or not isinstance(given, Mapping):
        return
    unknown = sorted(given.keys() - {t.name for t in tensors})
    if unknown:
        raise TreeError(
            f"the layout names {', '.join(map(repr, unknown[:20]))}, but the tree has no such tensor; a "
            "tree of layouts must have the tree's own structure, with None for tensors without a layout"
        )


def _refuse_contradictions(given: GivenLayouts, tensors: Sequence[LiveTensor]) -> None:
    lines = []
    for tensor in tensors:
        named = _named_layout(tensor, given)
        if tensor.layout is not None and named is not None and not _same(named, tensor):
            lines.append(
                f"  {tensor.name!r} is laid out {_show(tensor.layout)}, not {_show(named)}"
            )
    if lines:
        raise TreeError(
            "\n".join(
                [
                    "the layout contradicts the shardings of arrays; leave it out, or lay them out first "
                    "(distribute_tensor):",
                    *lines[:20],
                    *([f"  … and {len(lines) - 20} more"] if len(lines) > 20 else []),
                ]
            )
        )


def _named_layout(tensor: LiveTensor, given: GivenLayouts) -> TensorLayout | None:
    """The layout that names this tensor; None if a default or no layout applies."""
    if isinstance(given, LayoutMap | Mapping):
        return given.get(tensor.name)
    if isinstance(given, LayoutFile) and given.has_layout:
        found = layout_for(given, tensor.name, tensor.shape, tensor.dtype)
        return None if found.rule_index is None else found.layout
    return None


def _same(named: TensorLayout, tensor: LiveTensor) -> bool:
    own = tensor.layout
    if own is None or named.device_mesh is None or own.device_mesh is None:
        return True
    meshes = [(m.shape, m.axis_names) for m in (named.device_mesh, own.device_mesh)]
    return meshes[0] == meshes[1] and _padded(named, tensor) == _padded(own, tensor)


def _padded(layout: TensorLayout, tensor: LiveTensor) -> tuple[Any, ...]:
    return (*layout.axes, *[None] * (len(tensor.shape) - len(layout.axes)))


def _show(layout: TensorLayout) -> str:
    return f"{show_axes(layout.axes)} over {layout.device_mesh or 'no mesh'}"


def check_jax(what: str) -> None:
    """Raises MissingPackageError if jax is not installed; ``what`` names the call that needs it."""
    if find_spec("jax") is None:
        raise MissingPackageError(
            f"{what} needs jax, which is not installed; {how_to_install('jax')}"
        )


STEP_ITEM = "default"
"""The item that CheckpointManager saves in a step if the caller names none."""


class SaveOptions(Struct, frozen=True):
    """The options of a save, checked.

    Attributes:
        max_memory: most bytes of chunks on their way to disk.
        workers: threads that write.
        chunk_bytes: chunks above this are subdivided.
        timeout_s: seconds that the processes of a group wait for each other at each step.
        chunks_for: layouts of later readers, whose shards should be whole chunks.
        item: the tree's item and its folder; "" for a tree without an item.
        traits: of the place of the target.
    """

    max_memory: int
    workers: int
    encoding: Encoding
    chunk_bytes: int
    timeout_s: float
    chunks_for: tuple[Layout, ...] = ()
    style: Style = "v0"
    ocdbt: bool = False
    overwrite: bool = False
    item: str = ""
    traits: Traits = ON_DISK


def save_options(
    target: str,
    *,
    is_step: bool,
    chunks_for: Iterable[Any],
    compression: str,
    chunk_bytes: int | str | None,
    max_memory: int | str | None,
    workers: int | None,
    ocdbt: bool,
    style: Style,
    overwrite: bool,
    timeout: float,
) -> SaveOptions:
    """The options from the arguments of ``save``; PlanError or LayoutError for values that make no sense."""
    import jax

    traits = locate(target).traits
    limits, largest = limits_of(max_memory, workers, target), bytes_of("chunk_bytes", chunk_bytes)
    if largest is None:
        in_place = traits.in_place
        largest = SPLIT_ABOVE_BYTES if in_place else object_chunk_bytes(limits.max_memory)
    encoding = _encoding(compression)
    check_positive("chunk_bytes", largest, "bytes, such as 256MiB")
    check_choice("style", style, ("v0", "v1"))
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise PlanError(f"timeout is {timeout!r}; expected seconds, such as 1800")
    if ocdbt and jax.process_count() > 1:
        raise PlanError(
            "ocdbt=True: one database cannot be written by several processes; leave it out"
        )
    refuse_database(OrbaxForm(ocdbt), traits)
    return SaveOptions(
        limits.max_memory,
        limits.workers,
        encoding,
        largest,
        timeout,
        reader_layouts(chunks_for),
        style,
        ocdbt,
        overwrite,
        STEP_ITEM if is_step and style == "v0" else "",
        traits,
    )


def _encoding(compression: str) -> Encoding:
    found = parse_compression(compression)
    if found is None:
        raise PlanError(
            f"compression 'keep' is for converting; live arrays have none: choose {CODECS}"
        )
    return found
