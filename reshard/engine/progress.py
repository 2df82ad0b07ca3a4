"""Progress: the state of a run, reported after each piece of work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from reshard.answers.record import Record

Stage = Literal[
    "checking",
    "copying",
    "reading back",
    "identifying",
    "syncing",
    "restoring",
    "reading",
    "reading files",
    "comparing",
]


class Progress(Record, frozen=True):
    """The progress of a run; bytes are the source's, as decoded.

    Attributes:
        resumed_bytes: the part of ``moved_bytes`` that an earlier, unfinished run moved.
        hosts: bytes that each host moved, by its name, in a run by parts; else empty.
    """

    moved_bytes: int
    total_bytes: int
    tasks_done: int
    tasks: int
    tensor: str
    stage: Stage = "copying"
    resumed_bytes: int = 0
    hosts: Mapping[str, int] = {}


Tell = Callable[[Progress], None]
"""A function that is called with the progress of a run, after each piece of work."""


def tell_files(
    sizes: Mapping[str, int], progress: Callable[[Progress], None] | None
) -> Callable[[str], None]:
    """A function to be called with each file's name before it is read; it reports the bytes read until then."""
    total, done, count = sum(sizes.values()), 0, 0

    def read(name: str) -> None:
        nonlocal done, count
        if progress is not None:
            progress(Progress(done, total, count, len(sizes), name, "reading files"))
        done, count = done + sizes[name], count + 1

    return read


def tell_bytes(
    total_bytes: int, stage: Stage, progress: Callable[[Progress], None] | None
) -> Callable[[str, int], None]:
    """A function to be called with a tensor and the bytes that a task has read of it; the number of tasks is not known before."""
    done, count = 0, 0

    def tell(tensor: str, nbytes: int) -> None:
        nonlocal done, count
        done, count = done + nbytes, count + 1
        if progress is not None:
            progress(Progress(done, total_bytes, count, count, tensor, stage))

    return tell
