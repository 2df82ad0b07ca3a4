"""Interrupted runs: how tests stop a run, and what it leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import reshard
from reshard.storage.local import transaction as local_transaction
from reshard.storage.local.staging import staging_for
from reshard.storage.local.transaction import LocalTransaction
from tests.checkpoint_files import files_without_times
from tests.robustness.crash.cases import CASES


def journal_of(target: Path) -> Path:
    return staging_for(target).journal


class Recorded(NamedTuple):
    """A unit that a journal records; a chunk is ``[index, crc32c, nbytes, stored_bytes, versions]``."""

    tensor: int
    unit: int
    sums: list[Any]
    moved_bytes: int
    read_bytes: int
    chunks: list[Any]
    cast: Any
    target: int


def journal_tasks(target: Path) -> list[Recorded]:
    """The units that the journal records, read without the code under test."""
    lines = journal_of(target).read_bytes().split(b"\n")[1:-1]
    return [Recorded(*values) for line in lines for values in json.loads(line[9:])]


def same_result(found: Path, expected: Path, *, packed: bool) -> None:
    """Byte by byte the same folders; databases hold the same tensors."""
    if packed:
        assert reshard.verify(found, expected).differences == 0
        assert reshard.verify(found).differences == 0
    else:
        assert files_without_times(found) == files_without_times(expected)


CASE = CASES["weave"]


def stop(
    source: Path, target: Path, error: BaseException, after: int = 5, **options
) -> BaseException:
    """A run that ends by ``error`` once so many tasks were recorded."""
    real, calls = LocalTransaction.append, []

    def failing(self, finished):
        real(self, finished)
        calls.append(1)
        if len(calls) == after:
            raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalTransaction, "append", failing)
        with pytest.raises(type(error)) as caught:
            reshard.convert(source, target, **(options or CASE.options))
    return caught.value


def other_boot(monkeypatch):
    monkeypatch.setattr(local_transaction, "boot_id", lambda: "another boot")


def chunk_files(root: Path) -> list[Path]:
    """The files ``c.0.0``, of the only chunk of a tensor, and ``c/0/1``."""
    found = (p for p in root.rglob("*") if p.is_file())
    return sorted(p for p in found if _is_chunk(p.relative_to(root).parts))


def _is_chunk(parts: tuple[str, ...]) -> bool:
    return any(part == "c" or part.startswith("c.") for part in parts[1:])
