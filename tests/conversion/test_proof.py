"""The error when a target differs from the digest that its source recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from reshard.checksums.crc import CRC32C
from reshard.checksums.tensor_digest import PieceCrcs
from reshard.conversion.prove import check_sources
from reshard.engine.books import TensorResult
from reshard.engine.limits import Limits
from reshard.engine.output import TargetOutput
from reshard.engine.task import Task
from reshard.engine.write.sinks import PieceSink
from reshard.errors import CorruptError, VerificationError
from reshard.formats.slices.slice_file import digest_of
from reshard.geometry.grid import Box, Grid
from reshard.planning.piece import Piece
from reshard.planning.plans import Fill, Plan, TensorPlan
from tests.engine.stores import (
    RAW,
    RAW_CRC,
    Folder,
    Store,
    batches,
    by_hand,
    carry_out,
    side,
    tensor,
)

VALUES = np.arange(64, dtype=np.float32).reshape(8, 8) + 1
LIMITS = Limits(64 << 20, 1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "source")
    store.add(tensor("w", (8, 8), (8, 4)), VALUES, RAW, recorded=True)
    return store


def columns_to_rows(store: Store) -> Fill:
    spec, target = store.tensors["w"].spec, tensor("w", (8, 8), (4, 8))
    sides = side(spec, RAW), side(target, RAW_CRC)
    return by_hand(Piece.whole(spec, target), *sides, "weave", target.storage, 64)


def converted(store: Store, root: Path, limits: Limits = LIMITS) -> None:
    move = columns_to_rows(store)
    results = carry_out([move], store, root, Folder(), {"w": RAW_CRC})
    check_sources(Plan((TensorPlan((move,)),), 64 << 20, 1), store, seen_in(results), {}, limits)


def seen_in(results: Sequence[TensorResult]) -> dict[tuple[int, str], str]:
    (found,) = results
    return {(0, "w"): found.source_digest or ""}


def tasks(move: Fill, store: Store) -> list[Task]:
    plan, output = (
        Plan((TensorPlan((move,)),), 64 << 20, 1),
        TargetOutput(Folder(), {"w": RAW_CRC}, ""),
    )
    return [task for batch in batches(plan, store, output) for task in batch]


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_recorded_digest_stands_for_the_source(store, tmp_path):
    assert all(r.is_recorded for task in tasks(columns_to_rows(store), store) for r in task.reads)
    converted(store, tmp_path / "t")
    np.testing.assert_array_equal(
        Folder().read(tmp_path / "t", tensor("w", (8, 8), (4, 8)), RAW_CRC), VALUES
    )


def test_no_record_or_that_of_more_than_is_taken_stands_for_nothing(store):
    whole = columns_to_rows(store)
    half = Box((0, 0), (4, 8))
    target = side(tensor("w", (4, 8), (4, 8)), RAW_CRC)
    placement = Piece("w", half, "w", half, (0, 1), "float32", "float32")
    part = by_hand(placement, whole.source, target, "weave", Grid((4, 8), ((0, 4), (0, 8))), 64)
    assert not any(read.is_recorded for task in tasks(part, store) for read in task.reads)
    store.tensors["w"] = replace(store.tensors["w"], digest=None)
    assert not any(read.is_recorded for task in tasks(whole, store) for read in task.reads)


def test_a_source_that_changed_since(store, tmp_path):
    flip_last_byte(store.path)
    changed = VALUES.copy()
    changed.view("u1")[-1, -1] ^= 1
    now, before = digest_of(changed.tobytes()), digest_of(VALUES.tobytes())
    with pytest.raises(
        CorruptError,
        match=f"^'w' in 'made' has digest {now}, but {before} was recorded when it was written: "
        "its bytes changed since; restore it from another copy$",
    ):
        converted(store, tmp_path / "t")


def test_a_chunk_of_which_no_task_read_all_is_named(tmp_path):
    store = Store(tmp_path / "source")
    store.add(tensor("w", (8, 8), (8, 4)), VALUES, RAW_CRC, recorded=True)
    data = bytearray(store.path.read_bytes())
    data[-5] ^= 1  # the last byte before the checksum
    store.path.write_bytes(data)
    move = columns_to_rows(store)
    results = carry_out([move], store, tmp_path / "t", Folder(), {"w": RAW_CRC})
    with pytest.raises(CorruptError, match=r"^tensor 'w', chunk \[0, 1\]: its CRC32C is recorded"):
        check_sources(
            Plan((TensorPlan((move,)),), 64 << 20, 1), store, seen_in(results), {}, LIMITS
        )


def test_something_else_was_written(store, tmp_path, monkeypatch):
    put = PieceSink.put

    def flipped(sink, piece, band, box):
        band._bands.view("u1")[..., 0] ^= 1
        put(sink, piece, band, box)

    monkeypatch.setattr(PieceSink, "put", flipped)
    before = digest_of(VALUES.tobytes())
    with pytest.raises(
        VerificationError,
        match=rf"^'w': what was written has digest \w{{16}}, but what was read has {before}; the output was "
        "discarded; check this machine's memory, then run again$",
    ):
        converted(store, tmp_path / "t")


def test_without_memory_for_a_closer_look_the_error_says_so(store, tmp_path):
    flip_last_byte(store.path)
    with pytest.raises(
        VerificationError,
        match=r"^'w': what was written has digest \w{16}, but \w{16} was recorded of its source; the output was "
        r"discarded; run reshard verify made with more memory: if it finds nothing, check this machine's$",
    ):
        converted(store, tmp_path / "t", Limits(1, 1))


def test_what_was_read_lacks_the_checksum_that_is_stored(store):
    stored = PieceCrcs.of([Box.full((8, 8))], [CRC32C.of(VALUES.tobytes())], 4)
    store.tensors["w"] = replace(store.tensors["w"], digest=None, crcs=stored)
    plan = Plan((TensorPlan((columns_to_rows(store),)),), 64 << 20, 1)
    check_sources(plan, store, {}, {(0, "w"): stored.total}, LIMITS)
    with pytest.raises(
        VerificationError,
        match=r"^'w': what was read of 'w' does not have the CRC32C that was recorded, but what is stored has it; the output was "
        "discarded; check this machine's memory, then run again$",
    ):
        check_sources(plan, store, {}, {(0, "w"): stored.total ^ 1}, LIMITS)
    flip_last_byte(store.path)
    with pytest.raises(
        CorruptError, match=r"^tensor 'w': its bytes do not have the CRC32C that was recorded"
    ):
        check_sources(plan, store, {}, {(0, "w"): stored.total ^ 1}, LIMITS)
