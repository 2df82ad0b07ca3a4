"""Checkpoints of TensorFlow as a format: an index and data files, which a prefix names.

The form of a TensorFlow target: the slices and chunks of each tensor, and the kind of names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from msgspec.structs import replace

from reshard.errors import PlanError
from reshard.formats.base import Form, Reader, TargetCheckpoint, TargetTensor, Unarranged
from reshard.formats.contents import Carried, StoredTensor
from reshard.formats.format import About, Format, Mark, PlaceNames, refuse_surrogates
from reshard.formats.loose_pieces import in_shared_files, kept_shards, refuse_dtype
from reshard.formats.target_files import FILES, SHARD_BYTES, FilesOf
from reshard.formats.tensorflow.files import FORMAT, bundle_files
from reshard.formats.tensorflow.index import NUMBERS
from reshard.formats.tensorflow.reader import (
    OPENED_TENSOR_BYTES,
    TensorflowChunks,
    leaf_count,
    open_tensorflow,
)
from reshard.geometry.grid import Grid
from reshard.storage.local.staging import FILES_OF_PREFIX

if TYPE_CHECKING:
    from reshard.formats.file_map import FileMap


WHOLE_DTYPES = frozenset({
    "float16", "uint16", "uint32", "uint64", "int4", "int2", "float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz",
    "float8_e5m2fnuz",
})  # fmt: skip
"""Element types whose slices TensorFlow 2.21 cannot put together, so that they are stored whole."""


NamesOf = Literal["objects", "variables"]
"""The kind of names of tensors: those of objects, as ``tf.train.Checkpoint`` finds them, or of variables, as ``Saver`` of TensorFlow 1 does."""


class TensorflowForm(Form, frozen=True):
    """A TensorFlow target: an index and data files, whose names begin with the target's.

    Attributes:
        names: the kind of names of tensors: of objects, or of variables.
        files: data file i has slice i of each tensor (``"ranks"``), or each has at most ``file_bytes`` (``"shards"``), or there is one.
        file_bytes: a larger slice has a file of its own.
        graph: the place of the source's object graph, which a target with its names keeps.
    """

    format: ClassVar[str] = FORMAT

    names: NamesOf = "objects"
    files: FilesOf = "ranks"
    file_bytes: int = SHARD_BYTES
    graph: Carried | None = None

    @property
    def file(self) -> str:
        return FILES_OF_PREFIX

    def arrange(self, given: Unarranged) -> TargetTensor:
        """The tensor with contiguous parts of each slice as chunks, cut where the source is if that is near."""
        tensor, source = given.tensor, given.source
        refuse_dtype(tensor, NUMBERS, "TensorFlow files")
        return in_shared_files(tensor, source, _slices(tensor, source))

    def warnings(self, target: TargetCheckpoint, source: Reader) -> Iterator[str]:
        yield from _slice_warnings(target, source)
        if self.graph is not None:
            from reshard.formats.tensorflow.object_graph import target_graph, target_keys

            _, lacking = target_graph(self, target_keys(target, self).values())
            if lacking:
                yield (
                    f"the object graph is made of the names, and not kept from the source, whose graph does not have {lacking!r}: "
                    "objects that had several paths have one"
                )

    def plan(self, target: TargetCheckpoint) -> FileMap:
        from reshard.formats.tensorflow.write_files import plan_files

        refuse_surrogates("TensorFlow", target)
        return plan_files(target, self)


def tensorflow_form(options: Mapping[str, Any], source: Reader) -> TensorflowForm:
    """The form that the parsed options ask for: names of variables stay what they are.

    Raises PlanError for options that contradict each other or TensorFlow.
    """
    file_bytes = options["file_bytes"]
    files: FilesOf = options["files"] or ("ranks" if file_bytes is None else "shards")
    if files == "dcp":
        raise PlanError(
            "files is 'dcp', which is a form of safetensors; TensorFlow has a data file for each shard ('ranks'), data files of a size "
            "('shards'), or one ('one'): ask for one of these (files)"
        )
    if file_bytes is not None and files != "shards":
        raise PlanError(
            f"file_bytes is the size of shards, but files is {files!r}; leave it out (file_bytes)"
        )
    form = TensorflowForm(files=files, file_bytes=file_bytes or SHARD_BYTES)
    if not isinstance(source.chunks.origin, TensorflowChunks):
        return form
    names: NamesOf = "variables" if source.chunks.origin.is_of_variables else "objects"
    return replace(form, names=names, graph=source.chunks.origin.graph)


def _slices(tensor: TargetTensor, source: StoredTensor) -> Grid:
    """The slices in which a tensor is stored: those of its shards, if TensorFlow can put them together."""
    if tensor.spec.dtype in WHOLE_DTYPES:
        return Grid.whole(tensor.spec.shape)
    return kept_shards(tensor, source)


def _slice_warnings(target: TargetCheckpoint, source: Reader) -> Iterator[str]:
    """Warnings about tensors that are stored whole although shards were asked for, or the source has them in slices."""
    whole = [
        name
        for name, tensor in target.tensors.items()
        if tensor.spec.dtype in WHOLE_DTYPES
        and (
            (isinstance(tensor.shards, Grid) and tensor.shards.count > 1)
            or _was_cut(name, target, source)
        )
    ]
    if whole:
        more = f" and {len(whole) - 1:,} more tensors" if whole[1:] else ""
        yield (
            f"{whole[0]!r} ({target.tensors[whole[0]].spec.dtype}){more} is stored whole: TensorFlow cannot put slices of this dtype together"
        )
    lost = [
        name
        for name, tensor in target.tensors.items()
        if tensor.spec.dtype not in WHOLE_DTYPES and _was_cut(name, target, source)
    ]
    if lost:
        more = f" and {len(lost) - 1:,} more tensors" if lost[1:] else ""
        yield (
            f"{lost[0]!r}{more} is stored whole: its slices in the source are not even ones along one dimension, which are kept; say how it is "
            "to be cut, if it is (layout)"
        )
    yield from _string_warnings(target)


def _was_cut(name: str, target: TargetCheckpoint, source: Reader) -> bool:
    """True if a tensor of a TensorFlow source is in slices there, and in one here without a request."""
    tensor = target.tensors[name]
    is_asked = tensor.spec.layout is not None or tensor.partition is not None
    if is_asked or tensor.packed is None or tensor.packed.count > 1:
        return False
    if not isinstance(source.chunks.origin, TensorflowChunks) or not tensor.spec.nbytes:
        return False
    origin = target.made.origins.get(name) if target.made is not None else None
    stored = source.tensors.get(name if origin is None else origin.name)
    return stored is not None and stored.crcs is not None and len(stored.crcs.boxes) > 1


def _string_warnings(target: TargetCheckpoint) -> Iterator[str]:
    strings = [leaf.name for leaf in target.leaves if leaf.carried and leaf.carried.parts[1:]]
    if strings:
        more = f" and {len(strings) - 1:,} more" if strings[1:] else ""
        yield (
            f"{strings[0]!r} (strings){more} is stored whole: it is in slices in the source, and TensorFlow cannot put slices of strings "
            "together"
        )


def _recognise(names: PlaceNames) -> Mark | None:
    files = bundle_files(names)
    return None if files is None else Mark(leaves=leaf_count, files=files)


TENSORFLOW = Format(
    about=About(
        name=FORMAT,
        title="TensorFlow",
        marks="TensorFlow (PREFIX.index)",
        leaf_bytes=OPENED_TENSOR_BYTES,
        tensors_only=True,
        holds_texts=True,
        options=FILES,
        by_prefix=True,
    ),
    recognise=_recognise,
    open=lambda root, how: open_tensorflow(root, how.record, how.uri),
    write=tensorflow_form,
)
