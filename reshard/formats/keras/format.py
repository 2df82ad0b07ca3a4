"""Weights of Keras as a format: its entry in the registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reshard.arguments import Unlisted
from reshard.errors import FormatError
from reshard.formats.base import Form, Reader, RecordUse, TargetCheckpoint, TargetTensor
from reshard.formats.contents import StoredTensor
from reshard.formats.file_map import FileMap
from reshard.formats.format import About, Format, Recognised, refuse_surrogates
from reshard.formats.keras.files import ENDING, HDF5_ENDINGS, is_hdf5, is_keras, is_shard
from reshard.formats.keras.form import ONE_FILE, KerasForm, arrange, warnings
from reshard.formats.keras.reader import FORMAT, OPENED_TENSOR_BYTES, leaf_count, open_keras
from reshard.formats.slices.record_files import RecordedFolder
from reshard.geometry.grid import Grid
from reshard.storage.location import Location


def _is_replaceable(root: Location) -> bool:
    """True if it is an HDF5 file with the ending of Keras' weights. Files that Keras saved are replaced too."""
    return root.name.endswith(ENDING) and is_hdf5(root)


_RECOGNISED = Recognised(count_leaves=leaf_count, is_ours=_is_replaceable)


class Keras(Format):
    """``.weights.h5`` files of Keras 3, without Keras, and other HDF5 files of plain arrays, which are only read."""

    about = About(
        name=FORMAT,
        title="Keras",
        marks=f"Keras (*{ENDING})",
        leaf_bytes=OPENED_TENSOR_BYTES,
        tensors_only=True,
        one_file=ONE_FILE,
    )

    def recognise(self, root: Location) -> Recognised | None:
        return _RECOGNISED if is_keras(root) else None

    def may_be_file(self, name: str) -> bool:
        return name.endswith(HDF5_ENDINGS) and not is_shard(name)

    def open(
        self,
        root: Location,
        record: RecordUse = "checked",
        uri: str = "",
        unlisted: Unlisted = "leave",  # noqa: ARG002  nothing is listed
    ) -> Reader:
        return open_keras(root, record, uri)

    def form(self, options: Mapping[str, Any], source: Reader) -> KerasForm:  # noqa: ARG002  of the interface
        return KerasForm()

    def arrange(
        self,
        form: Form,  # noqa: ARG002  of the interface
        tensor: TargetTensor,
        source: StoredTensor,
        slices: Grid,  # noqa: ARG002  Keras loads whole tensors
    ) -> TargetTensor:
        return arrange(tensor, source)

    def warnings(self, target: TargetCheckpoint, source: Reader) -> Iterator[str]:  # noqa: ARG002  of the interface
        return warnings(target)

    def plan(self, target: TargetCheckpoint) -> FileMap:
        from reshard.formats.keras.write.file_map import plan_files

        refuse_surrogates(self, target)
        return plan_files(target)

    def folders_to_record(self, root: Location, reader: Reader) -> list[RecordedFolder]:
        raise FormatError(
            f"{reader.uri} is a single HDF5 file, which has no room for a record of digests; convert {root.name}, which records them"
        )


KERAS = Keras()
