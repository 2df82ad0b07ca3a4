"""The journal: the tasks that a run has finished, so that another run can resume there.

A text file of checked lines (``storage.checked_lines``), each a JSON value. The first is an object,
the header: what is converted and how, and on which host and boot. Each other line is a list of tasks
that are done, written after their last byte was handed to the kernel::

    [[move, unit, crcs, covers, moved_bytes, read_bytes, has_digest, cast, parts], ...]
    crcs: [source_crc, expected_crc or null, target_crc]
    covers: [source_cover, target_cover]
    cast: null or [overflows, nans, largest_relative_error]
    parts: [[index, crc32c, nbytes, stored_bytes], ...]

Nothing is synced: while the host runs, what was written before a line is in its memory or on the
device. After a reboot nothing of it is trusted before it is read again (``resume.check_chunks``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from reshard.conversion.resume.identity import Identity
from reshard.engine.target_run import DoneUnits
from reshard.engine.task import CastStats, ChunkPart, Finished, TaskResult
from reshard.errors import ResumeError
from reshard.planning.move import Plan
from reshard.storage.checked_lines import LineFile, read_lines

FORMAT = "reshard.journal"
VERSION = 1

_NO_CAST = CastStats()


class JournalHeader(Struct, frozen=True):
    """Whose journal it is.

    Attributes:
        host, boot: where its lines were written, and in which run of that kernel.
        root: inode of the folder or file that becomes the target.
    """

    identity: Identity
    host: str
    boot: str
    root: int


class Journal:
    """A new journal, open for appending."""

    def __init__(self, path: Path, header: JournalHeader) -> None:
        self._lines = LineFile(path)
        document = {"format": FORMAT, "version": VERSION, **to_builtins(header)}
        try:
            self._lines.append(json.dumps(document, sort_keys=True))
        except BaseException:
            self._lines.close()
            raise

    def append(self, finished: Sequence[Finished]) -> None:
        """Records tasks whose bytes were all handed to the kernel."""
        if finished:
            self._lines.append(json.dumps([_task_json(f) for f in finished], separators=(",", ":")))

    def close(self) -> None:
        self._lines.close()


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
        [[p.index, p.crc32c, p.nbytes, p.stored_bytes] for p in result.parts],
    ]


def read_header(path: Path) -> JournalHeader | None:
    """The header of the journal at ``path``; None where there is none that can be read.

    Raises ResumeError where another version of this program wrote it: that version can resume it.
    """
    for line in read_lines(path):
        try:
            document = json.loads(line)
            if document.pop("format") != FORMAT:
                return None
            _check_version(document.pop("version"), path)
            return _header(**document)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
    return None


def _check_version(version: Any, path: Path) -> None:
    if version != VERSION:
        raise ResumeError(
            f"an unfinished run was recorded by another version of reshard: {str(path)!r} has version {version!r}, "
            f"expected {VERSION}; resume with that version, or start over (restart)"
        )


def _header(identity: dict[str, Any], host: str, boot: str, root: int) -> JournalHeader:
    known = Identity(**identity)
    texts = [known.source, known.files, known.plan, host, boot, *known.settings.values()]
    if type(root) is not int or not all(isinstance(text, str) for text in texts):
        raise TypeError("a field of the wrong kind")
    return JournalHeader(known, host, boot, root)


def has_finished(path: Path) -> bool:
    """Whether the journal at ``path`` records any task that is done."""
    lines = read_lines(path)
    return next(lines, None) is not None and next(lines, None) is not None


def read_finished(path: Path, plan: Plan) -> Iterator[Finished]:
    """The tasks that the journal records, each once, up to the first line that cannot be read."""
    lines = read_lines(path)
    next(lines, None)
    seen = DoneUnits(plan)
    for line in lines:
        try:
            tasks = [_task(values, plan) for values in json.loads(line)]
        except (ValueError, TypeError, IndexError, RecursionError):
            return
        for task in tasks:
            if not seen.has(task.result.move, task.unit):
                seen.add(task.result.move, task.unit)
                yield task


def _task(values: Any, plan: Plan) -> Finished:
    """One task of a line; ValueError, TypeError or IndexError where it is none of the plan's."""
    move, unit, crcs, covers, moved, read, has_digest, cast, parts = values
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
    return Finished(unit, result)


def _cast(overflows: Any, nans: Any, error: Any, saturated: Any = 0) -> CastStats:
    _check_numbers(overflows, nans, saturated)
    return CastStats(overflows, nans, float(error), saturated)


def _part(values: Any, counts: Sequence[int]) -> ChunkPart:
    index, crc32c, nbytes, stored_bytes = values
    _check_numbers(*index, crc32c, nbytes, stored_bytes or 0)
    if any(i >= n for i, n in zip(index, counts, strict=True)):
        raise ValueError(index)
    return ChunkPart(tuple(index), crc32c, nbytes, stored_bytes)


def _check_numbers(*values: Any) -> None:
    if not all(type(v) is int and v >= 0 for v in values):
        raise ValueError(values)
