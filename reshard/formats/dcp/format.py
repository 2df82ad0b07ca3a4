"""torch's distributed checkpoint as a format: its entry in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reshard.arguments import Unlisted
from reshard.formats.base import Form, Reader, RecordUse, TargetCheckpoint, TargetTensor
from reshard.formats.contents import StoredTensor
from reshard.formats.dcp.files import (
    ENDING,
    FORMAT,
    METADATA,
    is_dcp,
    is_replaceable,
    metadata_files,
)
from reshard.formats.dcp.finished import is_whole
from reshard.formats.dcp.form import DcpForm, arrange
from reshard.formats.dcp.price import OPENED_LEAF_BYTES, leaf_count
from reshard.formats.dcp.reader import PLAIN, open_dcp
from reshard.formats.file_map import FileMap
from reshard.formats.format import About, Format, Recognised
from reshard.formats.slices.record_files import RecordedFolder, TensorTree
from reshard.geometry.grid import Grid
from reshard.storage.location import Location

_RECOGNISED = Recognised(
    count_leaves=leaf_count,
    is_finished=is_whole,
    # Never replace files that torch wrote.
    is_ours=is_replaceable,
)


class Dcp(Format):
    """``.metadata`` and ``.distcp`` files, without torch."""

    about = About(
        name=FORMAT,
        title="torch DCP",
        marks=f"torch DCP ({METADATA}, *{ENDING})",
        leaf_bytes=OPENED_LEAF_BYTES,
        tensors_only=False,
        is_flat=True,
    )
    conventions = PLAIN

    def recognise(self, root: Location) -> Recognised | None:
        return _RECOGNISED if is_dcp(root) else None

    def open(
        self,
        root: Location,
        record: RecordUse = "checked",
        uri: str = "",
        unlisted: Unlisted = "leave",  # noqa: ARG002  every tensor is listed
    ) -> Reader:
        return open_dcp(root, record, uri, self.conventions)

    def form(self, options: Mapping[str, Any], source: Reader) -> DcpForm:  # noqa: ARG002  of the interface
        return DcpForm()

    def arrange(
        self,
        form: Form,  # noqa: ARG002  of the interface
        tensor: TargetTensor,
        source: StoredTensor,
        slices: Grid,  # noqa: ARG002  torch puts together what it wants
    ) -> TargetTensor:
        return arrange(tensor, source)

    def plan(self, target: TargetCheckpoint) -> FileMap:
        from reshard.formats.dcp.write.file_map import plan_files

        return plan_files(target)

    def folders_to_record(self, root: Location, reader: Reader) -> list[RecordedFolder]:
        files = tuple(file.name for file in metadata_files(root))
        tree = TensorTree(reader.leaves, reader.tensors)
        return [RecordedFolder("", tree, files, data_files=None)]


DCP = Dcp()
