"""Checks that the file systems of the targets have room for what will be written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from reshard.conversion.prepare import space_left
from reshard.conversion.target_job import TargetJob
from reshard.errors import StorageError
from reshard.geometry.sizes import format_bytes
from reshard.storage.local import storage_errors


def check_space(orders: Sequence[TargetJob], there: Mapping[str, int]) -> None:
    """Raw output has a known size; compressed output may be smaller, so it is not judged.

    ``there`` says how many bytes of which target were written by an earlier run.
    """
    sized = [o for o in orders if o.options.encoding and o.options.encoding.compressor == "none"]
    by_device: dict[int, list[TargetJob]] = {}
    for order in sized:
        by_device.setdefault(_device(order.path), []).append(order)
    for together in by_device.values():
        _check_one(together, there)


def _check_one(orders: Sequence[TargetJob], there: Mapping[str, int]) -> None:
    targets = [order.prepared.path for order in orders]
    need = sum(o.summary.plan.written_bytes - there.get(o.prepared.path, 0) for o in orders)
    free = space_left(targets[0])
    if need > free:
        needs, whose = ("needs", "its") if len(targets) == 1 else ("need", "their")
        raise StorageError(
            f"{' and '.join(map(repr, targets))} {needs} {format_bytes(need)}, but {whose} file system has only "
            f"{format_bytes(free)} free; free space, choose another target, or narrow what is "
            "converted (select, cast)"
        )


def _device(target: Path) -> int:
    """The file system that a target will lie on."""
    with storage_errors("look at", target):
        return next(p for p in target.absolute().parents if p.exists()).stat().st_dev
