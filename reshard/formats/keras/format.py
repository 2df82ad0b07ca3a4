"""Weights of Keras as a format: ``.weights.h5`` files of Keras 3, without Keras; other HDF5 files of plain arrays are only read."""

from __future__ import annotations

from reshard.formats.format import About, Format, Mark, OneFile, PlaceNames
from reshard.formats.keras.files import ENDING, HDF5_ENDINGS, is_hdf5, is_keras, is_shard
from reshard.formats.keras.form import KerasForm
from reshard.formats.keras.reader import FORMAT, OPENED_TENSOR_BYTES, leaf_count, open_keras

_MARK = Mark(
    leaves=leaf_count,
    # Files that Keras saved are replaced too.
    is_ours=lambda root: root.name.endswith(ENDING) and is_hdf5(root),
)


def _recognise(names: PlaceNames) -> Mark | None:
    return _MARK if is_keras(names) else None


KERAS = Format(
    about=About(
        name=FORMAT,
        title="Keras",
        marks=f"Keras (*{ENDING})",
        leaf_bytes=OPENED_TENSOR_BYTES,
        tensors_only=True,
        one_file=OneFile(ENDING),
        may_be_file=lambda name: name.endswith(HDF5_ENDINGS) and not is_shard(name),
    ),
    recognise=_recognise,
    open=lambda root, how: open_keras(root, how.record, how.uri),
    write=lambda _, __: KerasForm(),
)
