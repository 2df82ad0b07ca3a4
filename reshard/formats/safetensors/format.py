"""safetensors as a format: what the registry knows of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from reshard.arguments import Unlisted
from reshard.formats.base import (
    About,
    Form,
    Format,
    Reader,
    Recognised,
    Record,
    TargetCheckpoint,
    TargetTensor,
)
from reshard.formats.contents import StoredTensor
from reshard.formats.file_map import FileMap
from reshard.formats.safetensors.files import index_files, is_whole
from reshard.formats.safetensors.folder import folders_to_record, is_replaceable
from reshard.formats.safetensors.form import (
    ONE_FILE,
    OPTIONS,
    SafetensorsForm,
    arrange,
    safetensors_form,
)
from reshard.formats.safetensors.reader import (
    FORMAT,
    OPENED_TENSOR_BYTES,
    is_safetensors_checkpoint,
    leaf_count,
    open_safetensors,
)
from reshard.formats.safetensors.target_warnings import target_warnings
from reshard.formats.slices.record_files import RecordedFolder
from reshard.formats.steps import committed
from reshard.geometry.grid import Grid
from reshard.storage.location import Location


def _is_finished(root: Location) -> bool:
    """Whether all files of a folder are there."""
    return not root.is_folder() or is_whole(root)


def _is_no_run(root: Location) -> bool:
    """A run's folder may also hold a safetensors file, beside its checkpoints."""
    return not (root.is_folder() and any(committed(root)))


_RECOGNISED = Recognised(
    count_leaves=leaf_count,
    is_finished=_is_finished,
    is_ours=is_replaceable,
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
        one_file=ONE_FILE,
    )

    def recognise(self, root: Location) -> Recognised | None:
        return _RECOGNISED if is_safetensors_checkpoint(root) else None

    def files_of(self, root: Location) -> tuple[Location, ...] | None:
        return index_files(root)

    def open(
        self,
        root: Location,
        record: Record = "checked",
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

    def warnings(self, target: TargetCheckpoint) -> Iterator[str]:
        form = cast("SafetensorsForm", target.form)
        return target_warnings(target, form.files, form.carried)

    def plan(self, target: TargetCheckpoint) -> FileMap:
        from reshard.formats.safetensors.write.file_map import plan_files

        return plan_files(target, cast("SafetensorsForm", target.form))

    def folders_to_record(self, root: Location, reader: Reader) -> list[RecordedFolder]:
        return folders_to_record(root, reader)


SAFETENSORS = Safetensors()
