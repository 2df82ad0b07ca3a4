"""Checkpoints of TensorFlow as a format: its entry in the registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from reshard.arguments import Unlisted
from reshard.errors import FormatError
from reshard.formats.base import Form, Reader, RecordUse, TargetCheckpoint, TargetTensor
from reshard.formats.contents import StoredTensor
from reshard.formats.file_map import FileMap
from reshard.formats.format import About, Format, Recognised, refuse_surrogates
from reshard.formats.slices.record_files import RecordedFolder
from reshard.formats.target_files import FILES
from reshard.formats.tensorflow.files import FORMAT, bundle_files
from reshard.formats.tensorflow.form import TensorflowForm, arrange, tensorflow_form, warnings
from reshard.formats.tensorflow.reader import (
    OPENED_TENSOR_BYTES,
    leaf_count,
    open_tensorflow,
)
from reshard.geometry.grid import Grid
from reshard.storage.location import Location

_RECOGNISED = Recognised(count_leaves=leaf_count, is_ours=lambda _: False)


class Tensorflow(Format):
    """Checkpoints of TensorFlow, which a prefix names: an index and data files."""

    about = About(
        name=FORMAT,
        title="TensorFlow",
        marks="TensorFlow (PREFIX.index)",
        leaf_bytes=OPENED_TENSOR_BYTES,
        tensors_only=True,
        holds_texts=True,
        options=FILES,
        by_prefix=True,
    )

    def recognise(self, root: Location) -> Recognised | None:
        return None if bundle_files(root) is None else _RECOGNISED

    def files_of(self, root: Location) -> tuple[Location, ...] | None:
        return bundle_files(root)

    def open(
        self,
        root: Location,
        record: RecordUse = "checked",
        uri: str = "",
        unlisted: Unlisted = "leave",  # noqa: ARG002  every tensor is listed
    ) -> Reader:
        return open_tensorflow(root, record, uri)

    def form(self, options: Mapping[str, Any], source: Reader) -> TensorflowForm:
        return tensorflow_form(options, source)

    def arrange(
        self,
        form: Form,  # noqa: ARG002  of the interface
        tensor: TargetTensor,
        source: StoredTensor,
        slices: Grid,  # noqa: ARG002  TensorFlow puts together what it wants
    ) -> TargetTensor:
        return arrange(tensor, source)

    def warnings(self, target: TargetCheckpoint, source: Reader) -> Iterator[str]:
        form = cast("TensorflowForm", target.form)
        yield from warnings(target, source)
        if form.graph is not None:
            from reshard.formats.tensorflow.write.graph import target_graph, target_keys

            _, lacking = target_graph(form, target_keys(target, form).values())
            if lacking:
                yield (
                    f"the object graph is made of the names, and not kept from the source, whose graph does not have {lacking!r}: "
                    "objects that had several paths have one"
                )

    def plan(self, target: TargetCheckpoint) -> FileMap:
        from reshard.formats.tensorflow.write.file_map import plan_files

        refuse_surrogates(self, target)
        return plan_files(target, cast("TensorflowForm", target.form))

    def folders_to_record(self, root: Location, reader: Reader) -> list[RecordedFolder]:  # noqa: ARG002  of the interface
        raise FormatError(
            f"{reader.uri} is the prefix of files in a folder that may have others, where no digests are recorded; convert it, which "
            "records them beside the target"
        )


TENSORFLOW = Tensorflow()
