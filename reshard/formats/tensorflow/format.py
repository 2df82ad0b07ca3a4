"""Checkpoints of TensorFlow as a format: what the registry knows of it."""

from __future__ import annotations

from reshard.arguments import Unlisted
from reshard.formats.base import Reader, Record
from reshard.formats.format import About, Format, Recognised
from reshard.formats.tensorflow.files import bundle_files
from reshard.formats.tensorflow.reader import (
    FORMAT,
    OPENED_TENSOR_BYTES,
    leaf_count,
    open_tensorflow,
)
from reshard.storage.location import Location

_RECOGNISED = Recognised(count_leaves=leaf_count, is_ours=lambda _: False)


class Tensorflow(Format):
    """Checkpoints of TensorFlow, which a prefix names: they are read."""

    about = About(
        name=FORMAT,
        title="TensorFlow",
        marks="TensorFlow (PREFIX.index)",
        leaf_bytes=OPENED_TENSOR_BYTES,
        tensors_only=False,
        is_written=False,
    )

    def recognise(self, root: Location) -> Recognised | None:
        return None if bundle_files(root) is None else _RECOGNISED

    def files_of(self, root: Location) -> tuple[Location, ...] | None:
        return bundle_files(root)

    def open(
        self,
        root: Location,
        record: Record = "checked",  # noqa: ARG002  it has none
        uri: str = "",
        unlisted: Unlisted = "leave",  # noqa: ARG002  every tensor is listed
    ) -> Reader:
        return open_tensorflow(root, uri)


TENSORFLOW = Tensorflow()
