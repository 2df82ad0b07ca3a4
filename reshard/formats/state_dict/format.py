"""State dicts of ``torch.save`` as a format that is read: its entry in the registry."""

from __future__ import annotations

from reshard.arguments import Unlisted
from reshard.errors import FormatError
from reshard.formats.base import Reader, RecordUse
from reshard.formats.format import About, ReadFormat, Recognised
from reshard.formats.slices.record_files import RecordedFolder
from reshard.formats.state_dict.files import ENDINGS, index_and_files, is_state, is_whole
from reshard.formats.state_dict.reader import (
    FORMAT,
    OPENED_LEAF_BYTES,
    leaf_count,
    open_state_dict,
)
from reshard.formats.steps import committed
from reshard.storage.location import Location


def _is_no_run(root: Location) -> bool:
    """A run's folder may also hold a model, beside its checkpoints."""
    return not (root.is_folder() and any(committed(root)))


_RECOGNISED = Recognised(
    count_leaves=leaf_count,
    is_finished=is_whole,
    # Never replace files that torch wrote.
    is_ours=lambda _: False,
    is_no_run=_is_no_run,
)


class StateDict(ReadFormat):
    """Files of ``torch.save``, and Hugging Face's models of them, without torch."""

    about = About(
        name=FORMAT,
        title="torch state dicts",
        marks=f"torch state dicts ({', '.join(f'*{ending}' for ending in ENDINGS[:4])})",
        leaf_bytes=OPENED_LEAF_BYTES,
        tensors_only=False,
        mixes_values=True,
        is_written=False,
        is_flat=True,
    )

    def recognise(self, root: Location) -> Recognised | None:
        return _RECOGNISED if is_state(root) else None

    def files_of(self, root: Location) -> tuple[Location, ...] | None:
        return index_and_files(root)

    def may_be_file(self, name: str) -> bool:
        return name.endswith(ENDINGS)

    def open(
        self,
        root: Location,
        record: RecordUse = "checked",  # noqa: ARG002  nothing records digests beside them
        uri: str = "",
        unlisted: Unlisted = "leave",
    ) -> Reader:
        return open_state_dict(root, uri, unlisted)

    def folders_to_record(self, root: Location, reader: Reader) -> list[RecordedFolder]:  # noqa: ARG002  of the interface
        raise FormatError(
            f"{reader.uri} has no room for a record of digests: its files are only read; convert it to a format that records them"
        )


STATE_DICT = StateDict()
