"""InPlaceReport: what a change in place did, as a call returns it."""

from __future__ import annotations

from reshard.geometry.sizes import format_bytes
from reshard.record import Record, counted, several, warned


class InPlaceReport(Record, frozen=True):
    """What ``reshard.apply_in_place`` did.

    Attributes:
        base: the folder, as it was given.
        version: that it has now, such as ``"000007"``.
        base_version: that it had before; "" where none was recorded.
        changed_tensors, all_tensors: how many differ from what they were, and how many there are.
        changed_bytes: how many bytes of them differ.
        journal_bytes: of the journal, which is gone.
        written_bytes: into the files of the weights, by this call.
        resumed: whether an interrupted call had begun it.
        already_done: whether the folder was the last version before; then nothing was written.
        removed: the records that did not fit any more, by name.
    """

    base: str
    version: str
    base_version: str
    changed_tensors: int
    all_tensors: int
    changed_bytes: int
    journal_bytes: int
    written_bytes: int
    seconds: float
    resumed: bool = False
    already_done: bool = False
    removed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        done = "was" if self.already_done else "is"
        headline = (
            f"{self.base!r}: {done} version {self.version}, {self.changed_tensors:,} of {counted(self.all_tensors, 'tensor')} changed, "
            f"{format_bytes(self.written_bytes)} written"
        )
        return several("InPlaceReport", headline, (), warned(self.warnings))
