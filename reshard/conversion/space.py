"""Checks that the file systems of the targets have room for what will be written."""

from __future__ import annotations

from collections.abc import Sequence

from reshard.conversion.open_target import OpenTarget
from reshard.conversion.prepare import space_left
from reshard.conversion.target_job import TargetJob
from reshard.errors import StorageError
from reshard.geometry.sizes import format_bytes
from reshard.storage.targets import device_of


def check_space(jobs: Sequence[TargetJob]) -> None:
    """Raises StorageError where there is no room for targets of which nothing was written yet."""
    _check([(job, job.plan.written_bytes) for job in jobs if not job.has_leftovers])


def check_space_left(targets: Sequence[OpenTarget]) -> None:
    """Raises StorageError where there is no room for what earlier runs have not written."""
    _check(
        [
            (target.job, target.job.plan.written_bytes - target.books.written_bytes)
            for target in targets
        ]
    )


def _check(needs: Sequence[tuple[TargetJob, int]]) -> None:
    """Raw output has a known size; compressed output may be smaller, so that it is not checked."""
    by_device: dict[int, list[tuple[TargetJob, int]]] = {}
    for job, nbytes in needs:
        is_raw = all(t.encoding.compressor == "none" for t in job.checkpoint.tensors.values())
        device = device_of(job.place) if is_raw else None
        if device is not None:
            by_device.setdefault(device, []).append((job, nbytes))
    for on_device in by_device.values():
        _check_device([str(job.place) for job, _ in on_device], sum(n for _, n in on_device))


def _check_device(targets: Sequence[str], need: int) -> None:
    free = space_left(targets[0])
    if free is not None and need > free:
        needs, whose = ("needs", "its") if len(targets) == 1 else ("need", "their")
        raise StorageError(
            f"{' and '.join(map(repr, targets))} {needs} {format_bytes(need)}, but {whose} file system has only "
            f"{format_bytes(free)} free; free space, choose another target, or narrow what is "
            "converted (select, cast)"
        )
