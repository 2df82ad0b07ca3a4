"""The report of one part of a conversion."""

from __future__ import annotations

from reshard.geometry.sizes import format_bytes
from reshard.record import Record, counted


class PartReport(Record, frozen=True):
    """What one part of a conversion did; the target appears with ``commit``, when all parts are done.

    Attributes:
        part: such as ``"3/16"``.
        tasks: units of work of this part.
        moved_bytes: decoded bytes that were moved, in all runs of this part.
        read_bytes: encoded bytes of source chunks that this run read.
        written_bytes: encoded bytes of the target's chunks, in all runs of this part.
        resumed_bytes: those of ``moved_bytes`` that an earlier run moved.
        seconds: wall time of this run, syncing included.
        already_done: whether the target is the finished result of this conversion, so that nothing was done.
    """

    source: str
    target: str
    part: str
    tasks: int = 0
    moved_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    resumed_bytes: int = 0
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    already_done: bool = False

    def __repr__(self) -> str:
        done = (
            "the target was finished before"
            if self.already_done
            else f"{counted(self.tasks, 'task')}, {format_bytes(self.moved_bytes)}, in {self.seconds:.1f} s"
        )
        return f"PartReport({self.source!r} → {self.target!r}, part {self.part}: {done})"
