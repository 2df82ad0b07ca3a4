"""torch's distributed checkpoint as a format: what the registry knows of it. It is read, and not written."""

from __future__ import annotations

from reshard.arguments import Unlisted
from reshard.formats.base import Reader, Record
from reshard.formats.dcp.files import ENDING, METADATA, is_dcp, is_whole, metadata_files
from reshard.formats.dcp.price import OPENED_LEAF_BYTES, leaf_count
from reshard.formats.dcp.reader import FORMAT, open_dcp
from reshard.formats.format import About, Format, Recognised
from reshard.formats.slices.record_files import RecordedFolder, TensorTree
from reshard.storage.location import Location

_RECOGNISED = Recognised(
    count_leaves=leaf_count,
    is_finished=is_whole,
    # Nothing that this project wrote: nobody wants to lose it.
    is_ours=lambda _: False,
)


class Dcp(Format):
    """``.metadata`` and ``.distcp`` files, without torch."""

    about = About(
        name=FORMAT,
        title="torch DCP",
        marks=f"torch DCP ({METADATA}, *{ENDING})",
        leaf_bytes=OPENED_LEAF_BYTES,
        tensors_only=False,
        is_written=False,
    )

    def recognise(self, root: Location) -> Recognised | None:
        return _RECOGNISED if is_dcp(root) else None

    def open(
        self,
        root: Location,
        record: Record = "checked",
        uri: str = "",
        unlisted: Unlisted = "leave",  # noqa: ARG002  every tensor is listed
    ) -> Reader:
        return open_dcp(root, record, uri)

    def folders_to_record(self, root: Location, reader: Reader) -> list[RecordedFolder]:
        files = tuple(file.name for file in metadata_files(root))
        tree = TensorTree(reader.leaves, reader.tensors)
        return [RecordedFolder("", tree, files, data_files=None)]


DCP = Dcp()
