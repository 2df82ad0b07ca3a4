"""Frames and journals of a change in place: done any number of times they give the new bytes, and what is damaged or made up is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import reshard
from reshard.deltas.in_place.redo_frames import (
    BLOCK_BYTES,
    HEAD_BYTES,
    BadFrameError,
    frame_of,
    frames_in,
    redo,
)
from reshard.deltas.in_place.redo_journal import Journal, RedoPlan, RedoTensor, write_plan
from reshard.storage.local.spool import Spool, Spooled
from reshard.storage.location import locate

MEMORY = 1 << 30
NBYTES = 2 * BLOCK_BYTES + 777


def versions(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    old = rng.integers(0, 256, NBYTES, dtype=np.uint8)
    new = old.copy()
    new[rng.choice(NBYTES, count, replace=False)] ^= 1
    return old, new


def encoded(old: np.ndarray, new: np.ndarray) -> bytes:
    blocks = range(0, len(old), BLOCK_BYTES)
    return b"".join(frame_of(old[at : at + BLOCK_BYTES], new[at : at + BLOCK_BYTES], at)[0] for at in blocks)  # fmt: skip


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@given(
    count=st.sampled_from((0, 1, 5, 400, 30_000, 60_000, NBYTES)),
    seed=st.integers(0, 9),
    size=st.sampled_from((1000, 65_537, 1 << 20)),
    done=st.floats(0, 1),
)
def test_any_mixture_of_both_versions_becomes_the_new_one(
    count: int, seed: int, size: int, done: float
) -> None:
    old, new = versions(count, seed)
    data = encoded(old, new)
    assert len(data) <= min(3 * count, NBYTES) + 3 * HEAD_BYTES
    is_new = np.random.default_rng(seed).random(NBYTES) < done
    mixed = np.where(is_new, new, old)
    for frame in frames_in(pieces(data, size), NBYTES):
        redo(mixed[frame.start : frame.start + frame.nbytes], frame)
    assert np.array_equal(mixed, new)
    for frame in frames_in(pieces(data, size), NBYTES):
        assert not redo(mixed[frame.start : frame.start + frame.nbytes], frame)


def test_every_flipped_bit_of_a_frame_is_found() -> None:
    old, new = versions(40, 0)
    data = encoded(old, new)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(BadFrameError):
            list(frames_in(pieces(bytes(damaged), 50), NBYTES))
    for end in (1, HEAD_BYTES, len(data) - 1):
        with pytest.raises(BadFrameError, match="bytes are left over"):
            list(frames_in(iter([data[:end]]), NBYTES))
    with pytest.raises(BadFrameError, match="a block at 0 of 65536 bytes, behind 65536"):
        list(frames_in(iter([2 * frame_of(old[:BLOCK_BYTES], new[:BLOCK_BYTES], 0)[0]]), NBYTES))


TENSOR = RedoTensor("a", "model.safetensors", 100, 5, "adler32", "00000000", 1, ((0, 9),))
PLAN = RedoPlan("000007", None, ("model.safetensors",), ("identity.json",), {"model.safetensors.index.json": "{}"}, (TENSOR,), 1)  # fmt: skip


def journal(folder: Path, plan: Any = PLAN) -> Path:
    with closing(Spool(str(folder), "redo")) as spool:
        spool.append(Spooled([]), b"no frames")
        write_plan(spool, plan, MEMORY)
    return folder / "redo"


def test_a_journal_says_what_was_written(tmp_path: Path) -> None:
    with closing(Journal(locate(journal(tmp_path)), MEMORY)) as opened:
        assert opened.plan == PLAN
        with pytest.raises(reshard.CorruptError, match=r"journal of a change in place is damaged: 'a' has 9 bytes are left over.*restore the folder from"):  # fmt: skip
            list(opened.frames(TENSOR))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"files": ("../model.safetensors",)}, "is no name of a file in its folder"),
        ({"files": ("config.json",)}, "is no file of weights"),
        ({"files": ("model.safetensors", "model.safetensors")}, "make no sense"),
        ({"records": ("config.json",)}, "is no record"),
        ({"written": {"/etc/passwd": ""}}, "is no name of a file in its folder"),
        ({"written": {"config.json": ""}}, "is neither an index nor slices.json"),
        ({"tensors": (replace(TENSOR, file="b.safetensors"),)}, "which it does not list"),
        ({"tensors": (replace(TENSOR, offset=-1),)}, "has a size below 0"),
        ({"tensors": (replace(TENSOR, digest="0"),)}, "has no adler32"),
        ({"tensors": (replace(TENSOR, parts=((0, 1 << 40),)),)}, "has frames beyond the end"),
        ({"tensors": (replace(TENSOR, checksum="md5"),)}, "its table is not one"),
        ({"version": 7}, "its table is not one"),
    ],
)
def test_a_journal_from_strangers_is_refused(
    change: dict[str, Any], text: str, tmp_path: Path
) -> None:
    path = journal(tmp_path, {**msgspec.to_builtins(PLAN), **msgspec.to_builtins(change)})
    with pytest.raises(reshard.CorruptError, match=f"is damaged: .*{text}"):
        Journal(locate(path), MEMORY)


def test_every_flipped_bit_of_the_table_is_found(tmp_path: Path) -> None:
    path = journal(tmp_path)
    data = path.read_bytes()
    for at in range(9, len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        with pytest.raises(reshard.CorruptError, match="the journal of a change in place is damaged"):  # fmt: skip
            Journal(locate(path), MEMORY)
    path.write_bytes(b"")
    with pytest.raises(reshard.CorruptError, match="it has 0 bytes"):
        Journal(locate(path), MEMORY)


def test_a_table_that_does_not_fit_the_memory_is_refused(tmp_path: Path) -> None:
    many = replace(PLAN, tensors=(TENSOR,) * 2000)
    text = (
        "takes 3 MiB for the table of the journal, but 1 MiB are allowed; allow max_memory of 3MiB"
    )
    path = journal(tmp_path, many)
    with pytest.raises(reshard.MemoryBudgetError, match=text) as caught:
        Journal(locate(path), 1 << 20)
    assert caught.value.smallest_bytes == 3 << 20
    with closing(Journal(locate(path), 3 << 20)) as opened:
        assert len(opened.plan.tensors) == 2000
    (tmp_path / "again").mkdir()
    spool = Spool(str(tmp_path / "again"), "redo")
    with closing(spool), pytest.raises(reshard.MemoryBudgetError, match=text):
        write_plan(spool, many, 1 << 20)
