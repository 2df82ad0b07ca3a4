"""Damaged, foreign and unusual journals never lead to wrong bytes."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

import reshard
from reshard.engine.journal import read_results
from reshard.errors import (
    ResumeError,
    SyncError,
)
from reshard.storage.checked_lines import checked_line
from reshard.storage.local import transaction as local_transaction
from reshard.storage.local.staging import staging_for
from reshard.storage.local.transaction import read_records
from tests.checkpoint_files import files_without_times
from tests.robustness.crash.interrupted import (
    CASE,
    journal_tasks,
)

pytestmark = pytest.mark.usefixtures("small_batches")


def damage_torn(data: bytes) -> bytes:
    return data[:-7]


def damage_flipped(data: bytes) -> bytes:
    at = data.index(b"\n") + 40
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def damage_twice(data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join([lines[0], *(line for line in lines[1:] for _ in range(2))])


def damage_no_header(data: bytes) -> bytes:
    return data.partition(b"\n")[2]


def damage_garbage(data: bytes) -> bytes:
    return data + b"\0" * 4096


def damage_foreign(data: bytes) -> bytes:
    """Whole lines that make no sense."""
    sums = [[0, 0, 0, 0, 0, True]]
    wrong = [[], {}, 3, [[99, 0, sums, 0, 0, []]], [[0, 10**9, sums, 0, 0, []]], [[0, 0, sums * 2, 0, 0, []]],
             [[0, 0, sums, 0, 0, [[[10**9], 0, 4, 4]]]], [[0, 0, sums, 0, 0, [[[], 0, 4, 4]]]], [[0, -1, "x", 0, 0, []]]]  # fmt: skip
    return data + b"".join(checked_line(json.dumps(line)) for line in wrong[::-1])


DAMAGES = [damage_torn, damage_flipped, damage_twice, damage_no_header, damage_garbage, damage_foreign,
           lambda _: b"", lambda data: checked_line("[" * 100_000) + data]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_journal_is_trusted_up_to_the_damage(
    damage, unfinished, source, target, expected
):
    unfinished.journal.write_bytes(damage(unfinished.journal.read_bytes()))
    reshard.convert(source, target, **CASE.options)
    assert files_without_times(target) == expected
    assert [p.name for p in target.parent.iterdir()] == ["t"]


def test_a_flipped_byte_anywhere_in_a_line_drops_the_line(unfinished, source, target):
    """The last line is found by its own checksum only, so every byte of a line counts."""
    data = unfinished.journal.read_bytes()
    start = data.rindex(b"\n", 0, -1) + 1
    before = len(journal_tasks(target))
    plan = reshard.plan(source, target, **CASE.options).plan
    for at in range(start, len(data)):
        unfinished.journal.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        found = list(read_results(read_records(unfinished.journal), plan))
        assert len(found) == before - 1


def places_of_numbers(values: list[Any]) -> Iterator[tuple[int, ...]]:
    """The path to each number in a result of a record."""
    for at, value in enumerate(values):
        if isinstance(value, list):
            yield from ((at, *inner) for inner in places_of_numbers(value))
        elif type(value) is int:
            yield (at,)


def with_number(task: list[Any], place: tuple[int, ...], number: Any) -> bytes:
    """A record of the task with another number at one place."""
    changed = copy.deepcopy(task)
    inner = changed
    for at in place[:-1]:
        inner = inner[at]
    inner[place[-1]] = number
    return json.dumps([changed]).encode()


TENSOR, UNIT, FIRST_INDEX = (0,), (1,), (5, 0, 0, 0)


def test_a_task_with_a_number_that_none_has_is_not_taken(unfinished, source, target):
    """Its checksum fits, as that of what another program wrote may."""
    plan = reshard.plan(source, target, **CASE.options).plan
    task = json.loads(next(iter(read_records(unfinished.journal))))[0]
    assert len(list(read_results([json.dumps([task]).encode()], plan))) == 1
    places = list(places_of_numbers(task))
    assert {TENSOR, UNIT, FIRST_INDEX} < set(places)
    wrong = [with_number(task, place, n) for place in places for n in (-1, 0.5, True, "1")]
    wrong += [with_number(task, place, 10**9) for place in (TENSOR, UNIT, FIRST_INDEX)]
    assert [record for record in wrong if list(read_results([record], plan))] == []


def test_a_journal_of_another_version_is_refused_and_kept(unfinished, source, target):
    lines = unfinished.journal.read_bytes().split(b"\n")
    header = {**json.loads(lines[0][9:]), "version": 4}
    newer = checked_line(json.dumps(header)) + b"\n".join(lines[1:])
    unfinished.journal.write_bytes(newer)
    with pytest.raises(
        ResumeError, match=r"another version of reshard: .*has version 4, expected 3"
    ):
        reshard.convert(source, target, **CASE.options)
    assert unfinished.journal.read_bytes() == newer
    assert reshard.convert(source, target, restart=True, **CASE.options).resumed_bytes == 0


def test_a_journal_that_is_a_pipe_is_not_waited_for(source, target):
    unfinished = staging_for(target)
    unfinished.folder.mkdir()
    os.mkfifo(unfinished.journal)
    assert reshard.convert(source, target, **CASE.options).resumed_bytes == 0


def test_nothing_is_kept_when_the_new_journal_cannot_be_synced(
    unfinished, source, target, monkeypatch
):
    def fail(_):
        raise SyncError("lost")

    monkeypatch.setattr(local_transaction, "fsync", fail)
    with pytest.raises(SyncError):
        reshard.convert(source, target, **CASE.options)
    assert not unfinished.folder.exists()
    unfinished.folder.mkdir()
    unfinished.next_journal.write_text("half")
    reshard.convert(source, target, **CASE.options)
    assert not unfinished.folder.exists()
