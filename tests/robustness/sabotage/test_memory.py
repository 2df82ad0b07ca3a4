"""Bits that flip in memory, and copies that go wrong there: the digest of what was written finds every one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reshard.engine.decode.source_bands import Interleaved
from reshard.engine.write import chunk_files, sinks
from reshard.engine.write.gathering import GatheringSink
from reshard.planning.piece import inverse
from reshard.storage import target
from tests.campaigns import singly
from tests.engine.stores import RAW_CRC, ZSTD_CRC
from tests.robustness.sabotage.moves import (
    APART,
    MOVE_CASES,
    put_defect,
    strike,
)

pytestmark = pytest.mark.usefixtures("dirty_buffers")


def flip(memory: np.ndarray | memoryview) -> None:
    np.frombuffer(memory, np.uint8)[0] ^= 4


@pytest.mark.parametrize("case", MOVE_CASES, ids=str)
def test_a_bit_that_flips_between_decoding_and_writing(case, make, monkeypatch):
    sink = sinks.ChunkSink if case.strategy == "block" else sinks.PieceSink
    sink = GatheringSink if case.gathered else sink

    def act(original, self, piece, band, box):
        elements = band._bands if isinstance(band, Interleaved) else band
        first = elements[(0,) * (elements.ndim - 1) + (slice(1),)]
        first.view("u1")[-1] ^= 4  # a bit that no cast rounds away
        return original(self, piece, band, box)

    def arm(patch, n):
        return put_defect(patch, sink, "put", n, act)

    assert strike(monkeypatch, make(case), arm) > 0


@pytest.mark.parametrize("case", [c for c in MOVE_CASES if c.target == RAW_CRC], ids=str)
def test_a_bit_that_flips_in_what_is_about_to_be_written(case, make, monkeypatch):
    """The digest is taken afterwards, of the same memory."""

    def act(original, fd, data, offset, path):
        if not data.readonly:
            flip(data)
        return original(fd, data, offset, path)

    def arm(patch, n):
        patch.setattr(
            chunk_files, "WRITE_BYTES", 0
        )  # so that small chunks are not joined by a copy
        writer = target if case.strategy == "block" else chunk_files  # a whole chunk, or pieces
        return put_defect(patch, writer, "write_all", n, act)

    assert strike(monkeypatch, make(case), arm) > 0


@pytest.mark.parametrize("case", [c for c in MOVE_CASES if c.target == ZSTD_CRC], ids=str)
def test_a_bit_that_flips_in_what_is_about_to_be_encoded(case, make, monkeypatch):
    def act(original, encoding, data):
        flip(data)
        return original(encoding, data)

    def arm(patch, n):
        return put_defect(patch, chunk_files, "encode_chunk", n, act)

    assert strike(monkeypatch, make(case), arm) > 0


@pytest.mark.parametrize("case", [c for c in MOVE_CASES if c.change != "none"], ids=str)
def test_a_copy_that_leaves_what_was_in_the_buffer(case, make, monkeypatch):
    def arm(patch, n):
        return put_defect(patch, sinks._Slots, "copy", n, lambda *_: None)

    assert strike(monkeypatch, make(case), arm) > 0


@pytest.mark.parametrize("case", [c for c in MOVE_CASES if c.change != "none"], ids=str)
def test_a_copy_in_the_wrong_order_of_axes(case, make, monkeypatch):
    def act(original, self, piece, band, where, out):
        elements = band[tuple(where[axis] for axis in inverse(piece.axis_order))]
        turned = np.ascontiguousarray(elements.transpose()).reshape(elements.shape)
        return original(self, piece, turned, (slice(None),) * turned.ndim, out)

    def arm(patch, n):
        return put_defect(patch, sinks._Slots, "copy", n, act)

    assert strike(monkeypatch, make(case), arm) > 0


@pytest.mark.parametrize(
    ("case", "through"),
    singly([c for c in MOVE_CASES if c.change == "cast"], ["bfloat16", "int32"]),
    ids=str,
)
def test_a_cast_that_is_done_twice(case, through, make, monkeypatch):
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, through, through))

    def act(original, out, elements, **how):
        return original(out, elements.astype(dtype), **how)

    def arm(patch, n):
        return put_defect(patch, sinks, "cast_into", n, act)

    assert strike(monkeypatch, make(case), arm) > 0


def bands_left_out(*_: Any) -> None:
    """Decodes nothing: the memory for the piece keeps its old content."""


def bands_turned_round(
    original: Any, interleaved: Interleaved, where: tuple[slice, ...], out: np.ndarray
) -> None:
    original(interleaved, where, out)
    out[...] = out[:, ::-1].copy()


def other_bands(
    original: Any, interleaved: Interleaved, where: tuple[slice, ...], out: np.ndarray
) -> None:
    original(Interleaved(interleaved._bands[::-1], interleaved._dim), where, out)


@pytest.mark.parametrize(
    "defect", [bands_left_out, bands_turned_round, other_bands], ids=lambda d: d.__name__
)
@pytest.mark.parametrize("case", [APART[8], APART[24]], ids=str)
def test_bands_that_are_taken_apart_wrongly(case, defect, make, monkeypatch):
    assert (
        strike(monkeypatch, make(case), lambda p, n: put_defect(p, Interleaved, "copy", n, defect))
        > 0
    )


def test_a_piece_that_is_taken_from_another_band(make, monkeypatch):
    def act(original, interleaved, where):
        return original(Interleaved(interleaved._bands[::-1], interleaved._dim), where)

    assert (
        strike(
            monkeypatch, make(APART[12]), lambda p, n: put_defect(p, Interleaved, "view", n, act)
        )
        > 0
    )
