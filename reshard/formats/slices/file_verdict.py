"""FileVerdict: how one file of a checkpoint compares with what slices.json recorded of it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

FileStatus = Literal["recorded", "different", "missing", "unexpected", "unreadable", "added"]


class FileVerdict(Struct, frozen=True):
    """What comparing one file with its record gave.

    Attributes:
        name: its path below the checkpoint.
        status: "unexpected" where a file was put in that a reader may take into account, "added" where
            none does (a README), which is no damage.
        stored: CRC-64/NVME of its bytes, 16 hex digits; None where it was not read.
        recorded: what was recorded of it.
        detail: what is wrong, in words.
        side: which of the two checkpoints that were compared it belongs to.
    """

    name: str
    status: FileStatus
    stored: str | None = None
    recorded: str | None = None
    detail: str = ""
    side: Literal["A", "B"] = "A"

    @property
    def is_difference(self) -> bool:
        return self.status not in ("recorded", "added")
