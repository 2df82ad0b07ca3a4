"""Checkpoints of TensorFlow as a format: an index and data files, which a prefix names."""

from __future__ import annotations

from reshard.formats.format import About, Format, Mark, PlaceNames
from reshard.formats.target_files import FILES
from reshard.formats.tensorflow.files import FORMAT, bundle_files
from reshard.formats.tensorflow.form import tensorflow_form
from reshard.formats.tensorflow.reader import OPENED_TENSOR_BYTES, leaf_count, open_tensorflow


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
