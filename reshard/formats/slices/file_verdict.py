"""FileVerdict: the result of comparing one file of a checkpoint with its record in slices.json."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

FileStatus = Literal["recorded", "different", "missing", "unexpected", "unreadable", "added"]


class FileVerdict(Struct, frozen=True):
    """The result of comparing one file with its record.

    Attributes:
        name: its path below the checkpoint.
        status: "unexpected" for a file without a record that a reader may use; "added" for one that no reader uses
            (a README), which is not damage.
        stored: CRC-64/NVME of its bytes, 16 hex digits; None if it was not read.
        recorded: its recorded digest.
        detail: what is wrong, in words.
        side: the checkpoint of the two that it is part of.
    """

    name: str
    status: FileStatus
    stored: str | None = None
    recorded: str | None = None
    detail: str = ""
    side: Literal["A", "B"] = "A"

    @property
    def is_difference(self) -> bool:
        """Whether the file is damaged or missing, or should not be there."""
        return self.status not in ("recorded", "added")
