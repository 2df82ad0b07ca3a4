"""The journal: the tasks that a run has finished, so that another run can resume there.

The records of a target's transaction (``storage.transaction``), each a list of tasks in JSON, written after their last
byte was handed to the store::

    [[move, unit, crcs, covers, moved_bytes, read_bytes, has_digest, cast, parts, host], ...]
    crcs: [source_crc, expected_crc or null, target_crc]
    covers: [source_cover, target_cover]
    cast: null or [overflows, nans, largest_relative_error]
    parts: [[index, crc32c, nbytes, stored_bytes], ...], each followed by the versions of its files in a bucket
    host: that did the task; left out where it was the run's own

Locally nothing is synced: after a reboot nothing of it is trusted before it is read again (``resume.check_chunks``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from reshard.conversion.resume.identity import Identity
from reshard.engine.target_run import DoneUnits
from reshard.engine.task import CastStats, ChunkPart, Finished, TaskResult
from reshard.planning.move import Plan

_NO_CAST = CastStats()


def record_of(finished: Sequence[Finished]) -> str:
    """The record of tasks whose bytes were all handed to the store."""
    return json.dumps([_task_json(f) for f in finished], separators=(",", ":"))


def _task_json(finished: Finished) -> list[Any]:
    result, cast = finished.result, finished.result.cast
    return [
        result.move,
        finished.unit,
        [result.source_crc, result.expected_crc, result.target_crc],
        [result.source_cover, result.target_cover],
        result.moved_bytes,
        result.read_bytes,
        int(result.has_digest),
        None
        if cast == _NO_CAST
        else [cast.overflows, cast.nans, float(cast.largest_relative_error), cast.saturated],
        [[p.index, p.crc32c, p.nbytes, p.stored_bytes, *p.versions] for p in result.parts],
        *([finished.host] if finished.host else []),
    ]


def identity_left(left: Mapping[str, Any] | None) -> Identity | None:
    """The identity that a transaction was left by; None if there is none, or it cannot be read."""
    try:
        known = Identity(**(left or {}))
        texts = [known.source, known.files, known.plan, *known.settings.values()]
    except (TypeError, AttributeError):
        return None
    return known if all(isinstance(text, str) for text in texts) else None


def read_finished(records: Iterable[bytes], plan: Plan) -> Iterator[Finished]:
    """The tasks that are recorded, each once, up to the first record that makes no sense."""
    seen = DoneUnits(plan)
    for record in records:
        try:
            tasks = [_task(values, plan) for values in json.loads(record)]
        except (ValueError, TypeError, IndexError, RecursionError):
            return
        for task in tasks:
            if not seen.has(task.result.move, task.unit):
                seen.add(task.result.move, task.unit)
                yield task


def _task(values: Any, plan: Plan) -> Finished:
    """One task of a line; ValueError, TypeError or IndexError where it is none of the plan's."""
    move, unit, crcs, covers, moved, read, has_digest, cast, parts, *host = values
    (source_crc, expected_crc, target_crc), (source_cover, target_cover) = crcs, covers
    _check_numbers(move, unit, source_crc, expected_crc or 0, target_crc, *covers, moved, read)
    grid = plan.moves[move].target.spec.storage
    if unit >= plan.moves[move].units.count:
        raise ValueError(unit)
    result = TaskResult(
        move,
        source_crc,
        target_crc,
        moved,
        read,
        tuple(_part(part, grid.parts) for part in parts),
        _NO_CAST if cast is None else _cast(*cast),
        bool(has_digest),
        expected_crc,
        source_cover,
        target_cover,
    )
    if len(host) > 1 or not all(isinstance(name, str) for name in host):
        raise ValueError(host)
    return Finished(unit, result, host="".join(host))


def _cast(overflows: Any, nans: Any, error: Any, saturated: Any = 0) -> CastStats:
    _check_numbers(overflows, nans, saturated)
    return CastStats(overflows, nans, float(error), saturated)


def _part(values: Any, counts: Sequence[int]) -> ChunkPart:
    index, crc32c, nbytes, stored_bytes, *versions = values
    _check_numbers(*index, crc32c, nbytes, stored_bytes or 0)
    if any(i >= n for i, n in zip(index, counts, strict=True)):
        raise ValueError(index)
    if not all(isinstance(version, str) for version in versions):
        raise ValueError(versions)
    return ChunkPart(tuple(index), crc32c, nbytes, stored_bytes, tuple(versions))


def _check_numbers(*values: Any) -> None:
    if not all(type(v) is int and v >= 0 for v in values):
        raise ValueError(values)
