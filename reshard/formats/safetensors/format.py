"""safetensors as a format: its entry in the registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from reshard.arguments import Unlisted
from reshard.errors import FormatError, ReshardError
from reshard.formats.base import Form, Reader, RecordUse, TargetCheckpoint, TargetTensor
from reshard.formats.contents import StoredTensor
from reshard.formats.file_map import FileMap
from reshard.formats.format import About, Format, Recognised
from reshard.formats.record_names import OF_RECORDS
from reshard.formats.safetensors.beside import beside
from reshard.formats.safetensors.files import (
    files_of,
    folder_of,
    index_files,
    is_named_index,
    is_whole,
)
from reshard.formats.safetensors.form import (
    ONE_FILE,
    SafetensorsForm,
    arrange,
    safetensors_form,
)
from reshard.formats.safetensors.header import is_safetensors
from reshard.formats.safetensors.model_name import is_shard, is_weights
from reshard.formats.safetensors.options import OPTIONS
from reshard.formats.safetensors.reader import (
    FORMAT,
    OPENED_TENSOR_BYTES,
    is_safetensors_checkpoint,
    leaf_count,
    open_safetensors,
)
from reshard.formats.safetensors.target_warnings import target_warnings
from reshard.formats.slices.file_digests import files_below
from reshard.formats.slices.parse import read_slices
from reshard.formats.slices.record_files import RecordedFolder, TensorTree
from reshard.formats.steps import committed
from reshard.geometry.grid import Grid
from reshard.storage.commit_markers import COMMIT_MARKER
from reshard.storage.location import Location


def _is_finished(root: Location) -> bool:
    """True if all files of a folder, or of an index, are there."""
    return is_whole(folder_of(root)) if root.is_folder() or is_named_index(root) else True


def _is_no_run(root: Location) -> bool:
    """A run's folder may also hold a safetensors file, beside its checkpoints."""
    return not (root.is_folder() and any(committed(root)))


def _is_replaceable(root: Location) -> bool:
    """True for a safetensors file, and for a folder with nothing but files of this project.

    A folder from elsewhere may hold a tokenizer, a config.json or training code, which must not be lost.
    """
    if not root.is_folder():
        return is_safetensors(root)
    try:
        record = read_slices(root)
        if record is None:
            return False
        known = frozenset({*OF_RECORDS, COMMIT_MARKER, *record.files})
        return all(n in known or ("/" not in n and is_weights(n)) for n in files_below(root))
    except ReshardError:
        return False


_RECOGNISED = Recognised(
    count_leaves=leaf_count,
    is_finished=_is_finished,
    is_ours=_is_replaceable,
    is_no_run=_is_no_run,
)


class Safetensors(Format):
    """Single files, shards with an index, and slices over files."""

    about = About(
        name=FORMAT,
        title="safetensors",
        marks="safetensors (*.safetensors)",
        leaf_bytes=OPENED_TENSOR_BYTES,
        options=OPTIONS,
        tensors_only=True,
        is_flat=True,
        one_file=ONE_FILE,
    )

    def recognise(self, root: Location) -> Recognised | None:
        return _RECOGNISED if is_safetensors_checkpoint(root) else None

    def files_of(self, root: Location) -> tuple[Location, ...] | None:
        return index_files(root)

    def may_be_file(self, name: str) -> bool:
        return is_weights(name) and not is_shard(name)

    def open(
        self,
        root: Location,
        record: RecordUse = "checked",
        uri: str = "",
        unlisted: Unlisted = "leave",
    ) -> Reader:
        return open_safetensors(root, record, uri, unlisted)

    def form(self, options: Mapping[str, Any], source: Reader) -> SafetensorsForm:
        return safetensors_form(options, source)

    def arrange(
        self,
        form: Form,
        tensor: TargetTensor,
        source: StoredTensor,
        slices: Grid,  # noqa: ARG002  the files decide
    ) -> TargetTensor:
        return arrange(cast("SafetensorsForm", form), tensor, source)

    def warnings(self, target: TargetCheckpoint, source: Reader) -> Iterator[str]:  # noqa: ARG002  of the interface
        return target_warnings(target, cast("SafetensorsForm", target.form))

    def plan(self, target: TargetCheckpoint) -> FileMap:
        from reshard.formats.safetensors.write.file_map import plan_files

        return plan_files(target, cast("SafetensorsForm", target.form))

    def folders_to_record(self, root: Location, reader: Reader) -> list[RecordedFolder]:
        return _folders_to_record(root, reader)


def _folders_to_record(root: Location, reader: Reader) -> list[RecordedFolder]:
    """The folder, with the index and the files beside the weights; the digests of tensors cover the rest.

    Raises FormatError for a single file or an index.
    """
    if is_named_index(root):
        raise FormatError(
            f"{reader.uri} is an index, and a record of digests belongs to its folder; name the folder {root.parent}"
        )
    if not root.is_folder():
        raise FormatError(
            f"{reader.uri} is a single safetensors file, which has no room for a record of digests; put it into a folder and "
            "record that, or convert it, which records them; a file that reshard wrote has its record in the header"
        )
    names = [*beside(root).files]
    index = files_of(root).index
    if index is not None:
        names.append(index.file.name)
    tree = TensorTree(reader.leaves, reader.tensors)
    return [RecordedFolder("", tree, tuple(names), data_files=None)]


SAFETENSORS = Safetensors()
