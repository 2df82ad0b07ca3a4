"""Defects inside the engine: every one is caught by the digest of what was written, or changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from reshard.engine.decode.interleave import Interleaved
from reshard.engine.movers import single_chunk as whole
from reshard.engine.movers import stream as copy
from reshard.engine.run import run
from reshard.engine.task_stream import Ends, batches
from reshard.engine.write import chunk_files, sinks
from reshard.engine.write.split import Cutter, Piece
from reshard.errors import VerificationError
from reshard.planning.move import Plan
from reshard.planning.placement import Placement
from tests.engine.stores import RAW_CRC, ZSTD, ZSTD_CRC, Folder, Store, by_hand, side, tensor
from tests.robustness.sabotage.moves import APART, WAYS, Moving, Nth, Way, moving

RAW_TARGETS = [w for w in WAYS if w.strategy != "block"]
PLACES = (1, 2, 3, 5, 8, 12, 17)
"""Which call is struck, as far as there are so many: first ones, and some behind bands of zeros."""


pytestmark = pytest.mark.usefixtures("dirty_buffers")


def strike(monkeypatch, make: Callable[[int], Moving], arm: Callable[[Any, int], Nth]) -> int:
    """Carries the move out with the defect at each place in turn; how often it was caught.

    Never may it go unnoticed that something else was written than should have been.
    """
    caught = 0
    for n in PLACES:
        move = make(n)
        with monkeypatch.context() as patch:
            defect = arm(patch, n)
            try:
                move.run()
            except VerificationError:
                caught += 1
                continue
        np.testing.assert_array_equal(move.found(), move.expected)
        if not defect.struck:
            break
    return caught


def put(patch: Any, owner: Any, name: str, n: int, act: Callable[..., Any]) -> Nth:
    """Puts a defect in the place of the ``n``-th call of a function."""
    defect = Nth(n, act, getattr(owner, name))
    patch.setattr(owner, name, defect)
    return defect


@pytest.fixture
def make(tmp_path):
    """The move of a way, each in a folder of its own."""

    def make_one(way: Way) -> Callable[[int], Moving]:
        def at(n: int) -> Moving:
            folder = tmp_path / str(n)
            folder.mkdir()
            return moving(way, folder)

        return at

    return make_one


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_without_a_defect_all_is_well(way, make):
    move = make(way)(0)
    result = move.run()
    np.testing.assert_array_equal(move.found(), move.expected)
    assert way.change != "none" or result.source_digest == result.target_digest


# Pieces ------------------------------------------------------------------------------------------

Pieces = list[Piece]


def swapped_elements(pieces: Pieces) -> Pieces:
    """Two pieces get each other's elements."""
    a, b, *rest = pieces
    return [a._replace(in_band=b.in_band), b._replace(in_band=a.in_band), *rest]


def swapped_chunks(pieces: Pieces) -> Pieces:
    """Two pieces of one shape go to each other's chunks."""
    a, b, *rest = pieces
    return [a._replace(number=b.number), b._replace(number=a.number), *rest]


def dropped(pieces: Pieces) -> Pieces:
    return pieces[1:]


def last_dropped(pieces: Pieces) -> Pieces:
    return pieces[:-1]


def twice(pieces: Pieces) -> Pieces:
    return [pieces[0], *pieces]


def over_another(pieces: Pieces) -> Pieces:
    """The first piece's elements lie over the second's as well; nothing else is lost."""
    a, b, *_ = pieces
    return [*pieces, b._replace(in_band=a.in_band)]


def in_place_of_another(pieces: Pieces) -> Pieces:
    """The first is written again where it is, the second never."""
    a, _, *rest = pieces
    return [a, a, *rest]


def other_row(pieces: Pieces) -> Pieces:
    return [_moved(pieces[0], 0), *pieces[1:]]


def other_element(pieces: Pieces) -> Pieces:
    return [_moved(pieces[0], -1), *pieces[1:]]


def all_other_row(pieces: Pieces) -> Pieces:
    return [_moved(p, 0) for p in pieces]


def _moved(piece: Piece, axis: int) -> Piece:
    start = list(piece.start)
    start[axis] += -1 if start[axis] else 1
    return piece._replace(start=tuple(start))


CUTS = [
    swapped_elements, swapped_chunks, dropped, last_dropped, twice, over_another,
    in_place_of_another, other_row, other_element, all_other_row,
]  # fmt: skip


@pytest.mark.parametrize("defect", CUTS)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_pieces_in_the_wrong_place(way, defect, make, monkeypatch):
    caught = strike(monkeypatch, make(way), lambda patch, n: _cut_wrong(patch, defect, n))
    # In a chunk that is held in memory the same elements twice are no defect.
    assert caught > 0 or (way.strategy, defect) == ("block", twice)


def _cut_wrong(patch: Any, defect: Callable[[Pieces], Pieces], n: int) -> Nth:
    def act(original: Any, *args: Any) -> Iterator[Piece]:
        pieces = list(original(*args))
        return iter(defect(pieces) if len(pieces) > 1 else pieces)

    return put(patch, Cutter, "pieces", n, act)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("number", range(2))
def test_a_chunk_that_is_never_filled_nor_summed_up(way, number, make, monkeypatch):
    """Whatever is dropped is dropped each time; where it is zeros, no digest misses it."""
    original = Cutter.pieces

    def without(cutter, box):
        return (p for p in original(cutter, box) if p.number != number)

    monkeypatch.setattr(Cutter, "pieces", without)
    with pytest.raises(VerificationError, match="'w': "):
        make(way)(0).run()


# Memory ------------------------------------------------------------------------------------------


def flip(memory: np.ndarray | memoryview) -> None:
    np.frombuffer(memory, np.uint8)[0] ^= 4


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_bit_that_flips_between_decoding_and_writing(way, make, monkeypatch):
    sink = sinks.ChunkSink if way.strategy == "block" else sinks.PieceSink

    def act(original, self, band, box):
        elements = band._lanes if isinstance(band, Interleaved) else band
        first = elements[(0,) * (elements.ndim - 1) + (slice(1),)]
        first.view("u1")[0] ^= 4
        return original(self, band, box)

    def arm(patch, n):
        return put(patch, sink, "put", n, act)

    assert strike(monkeypatch, make(way), arm) > 0


@pytest.mark.parametrize("way", [w for w in WAYS if w.target == RAW_CRC], ids=str)
def test_a_bit_that_flips_in_what_is_about_to_be_written(way, make, monkeypatch):
    """The digest is taken afterwards, of the same memory."""

    def act(original, fd, data, offset, path):
        if not data.readonly:
            flip(data)
        return original(fd, data, offset, path)

    def arm(patch, n):
        patch.setattr(
            chunk_files, "WRITE_BYTES", 0
        )  # so that small chunks are not joined by a copy
        return put(patch, chunk_files, "write_all", n, act)

    assert strike(monkeypatch, make(way), arm) > 0


@pytest.mark.parametrize("way", [w for w in WAYS if w.target == ZSTD_CRC], ids=str)
def test_a_bit_that_flips_in_what_is_about_to_be_encoded(way, make, monkeypatch):
    def act(original, encoding, data):
        flip(data)
        return original(encoding, data)

    def arm(patch, n):
        return put(patch, chunk_files, "encode_chunk", n, act)

    assert strike(monkeypatch, make(way), arm) > 0


@pytest.mark.parametrize("way", [w for w in WAYS if w.change != "none"], ids=str)
def test_a_copy_that_leaves_what_was_in_the_buffer(way, make, monkeypatch):
    def arm(patch, n):
        return put(patch, sinks._Pieces, "copy", n, lambda *_: None)

    assert strike(monkeypatch, make(way), arm) > 0


@pytest.mark.parametrize("way", [w for w in WAYS if w.change != "none"], ids=str)
def test_a_copy_in_the_wrong_order_of_axes(way, make, monkeypatch):
    def act(original, self, band, where, out):
        elements = band[where]
        turned = np.ascontiguousarray(elements.transpose()).reshape(elements.shape)
        return original(self, turned, (slice(None),) * turned.ndim, out)

    def arm(patch, n):
        return put(patch, sinks._Pieces, "copy", n, act)

    assert strike(monkeypatch, make(way), arm) > 0


@pytest.mark.parametrize("way", [w for w in WAYS if w.change == "cast"], ids=str)
@pytest.mark.parametrize("through", ["bfloat16", "int32"])
def test_a_cast_that_is_done_twice(way, through, make, monkeypatch):
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, through, through))

    def act(original, out, elements, **how):
        return original(out, elements.astype(dtype), **how)

    def arm(patch, n):
        return put(patch, sinks, "cast_into", n, act)

    assert strike(monkeypatch, make(way), arm) > 0


def lanes_left_out(*_: Any) -> None:
    """Whoever wants a piece finds in its memory what was there."""


def lanes_turned_round(
    original: Any, woven: Interleaved, where: tuple[slice, ...], out: np.ndarray
) -> None:
    original(woven, where, out)
    out[...] = out[:, ::-1].copy()


def other_lanes(
    original: Any, woven: Interleaved, where: tuple[slice, ...], out: np.ndarray
) -> None:
    original(Interleaved(woven._lanes[::-1], woven._dim), where, out)


@pytest.mark.parametrize(
    "defect", [lanes_left_out, lanes_turned_round, other_lanes], ids=lambda d: d.__name__
)
@pytest.mark.parametrize("way", [APART[8], APART[24]], ids=str)
def test_lanes_that_are_taken_apart_wrongly(way, defect, make, monkeypatch):
    assert strike(monkeypatch, make(way), lambda p, n: put(p, Interleaved, "copy", n, defect)) > 0


def test_a_piece_that_is_taken_from_another_lane(make, monkeypatch):
    def act(original, woven, where):
        return original(Interleaved(woven._lanes[::-1], woven._dim), where)

    assert (
        strike(monkeypatch, make(APART[12]), lambda p, n: put(p, Interleaved, "view", n, act)) > 0
    )


# Places in files, and whole chunks ---------------------------------------------------------------


def one_run_on(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    (offset, nbytes), *rest = places
    return [(offset + 4, nbytes), *rest]


def middle_run_back(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    half = len(places) // 2
    offset, nbytes = places[half]
    return [*places[:half], (offset - 4, nbytes), *places[half + 1 :]]


def all_a_row_on(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(offset + 24, nbytes) for offset, nbytes in places]


def one_run_lost(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return places[:-1] or [(0, 0)]


@pytest.mark.parametrize(
    "defect", [one_run_on, middle_run_back, all_a_row_on, one_run_lost], ids=lambda d: d.__name__
)
@pytest.mark.parametrize("way", RAW_TARGETS, ids=str)
def test_runs_of_bytes_in_the_wrong_place(way, defect, make, monkeypatch):
    def arm(patch, n):
        return put(patch, sinks, "runs", n, lambda original, *args: defect(original(*args)))

    assert strike(monkeypatch, make(way), arm) > 0


@pytest.mark.parametrize("way", [w for w in WAYS if w.strategy == "block"], ids=str)
@pytest.mark.parametrize("wrong", ["elements", "target"])
def test_a_chunk_that_is_stored_as_another(way, wrong, make, monkeypatch):
    """A chunk gets the first one's elements, or lies in the first one's place."""

    def arm(patch, n):
        first: list[Any] = []

        def act(original, task, target, data, root, put_):
            if wrong == "target":
                return original(task, first[0][0], data, root, put_)
            return original(task, target, first[0][1], root, put_)

        def note(original, task, target, data, root, put_):
            first.append((target, data.copy()))
            return original(task, target, data, root, put_)

        put(patch, sinks, "store_chunk", 1, note)
        return put(patch, sinks, "store_chunk", n + 1, act)

    assert strike(monkeypatch, make(way), arm) > 0


@pytest.mark.parametrize("target", [RAW_CRC, ZSTD_CRC], ids=["raw", "zstd"])
@pytest.mark.parametrize("wrong", ["place", "elements", "zeros"])
def test_small_chunks_that_change_places(target, wrong, tmp_path, monkeypatch):
    """Chunks that are moved whole: two get each other's place, or one the other's elements."""
    spec = tensor("w", (8, 6), (2, 6))
    numbers = np.arange(48, dtype=np.float32).reshape(8, 6)
    numbers[2:6] = 0
    store = Store(tmp_path / "source")
    store.add(spec, numbers, ZSTD)
    sides = side(spec, ZSTD), side(spec, target)
    move = by_hand(Placement.whole(spec, spec), *sides, "whole", spec.storage, 48)
    plan, ends = Plan((move,), 64 << 20, 1), Ends(store, Folder(), {"w": target})
    tasks = [t for b in batches(plan, ends) for t in b]
    swap = (1, 3) if wrong == "zeros" else (0, 3)
    original = whole.store_chunk

    def store_wrongly(task, chunk, data, root, put):
        if chunk.index[0] in swap:
            other = tasks[swap[0] + swap[1] - chunk.index[0]].targets[0]
            if wrong == "elements":
                data = np.full_like(data, 7)
            elif chunk.index[0] == swap[0]:
                chunk = other
        return original(task, chunk, data, root, put)

    monkeypatch.setattr(whole, "store_chunk", store_wrongly)
    with pytest.raises(VerificationError, match=r"^'w': "):
        run(plan, [tuple(tasks)], ends, str(tmp_path / "t"))


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_task_done_twice_in_place_of_another(way, tmp_path):
    """Twice the same takes itself away from a digest, and amounts are as they should be."""
    move = moving(way, tmp_path)
    ends = Ends(move.store, Folder(), {"w": way.target})
    plan = Plan((move.move,), 64 << 20, way.workers)
    first, _, *rest = [(t,) for b in batches(plan, ends) for t in b]
    with pytest.raises(VerificationError, match=r"^'w': "):
        run(plan, [first, first, *rest], ends, str(move.root))


def test_chunks_that_are_copied_as_each_other(tmp_path, monkeypatch):
    """No element is seen where chunks travel encoded, so that at least their names are compared."""
    spec = tensor("w", (8, 6), (2, 6))
    store = Store(tmp_path / "source")
    store.add(spec, np.arange(48, dtype=np.float32).reshape(8, 6), ZSTD)
    both = side(spec, ZSTD)
    move = by_hand(Placement.whole(spec, spec), both, both, "copy", spec.storage, 1)
    plan, ends = Plan((move,), 64 << 20, 1), Ends(store, Folder(), {"w": ZSTD})
    original = copy.pass_through

    def swapped(task, files, put):
        from msgspec.structs import replace

        moved = (replace(task.sources[0], index=(1, 0)), *task.sources[1:])
        return original(replace(task, sources=moved), files, put)

    monkeypatch.setattr(copy, "pass_through", swapped)
    with pytest.raises(
        VerificationError,
        match=r"^'w': chunk \[1, 0\] of the source was to be copied as chunk \[0, 0\]; this is a defect",
    ):
        run(plan, batches(plan, ends), ends, str(tmp_path / "t"))


def test_a_copy_that_stops_early(tmp_path, monkeypatch):
    spec = tensor("w", (8, 6), (2, 6))
    store = Store(tmp_path / "source")
    store.add(spec, np.arange(48, dtype=np.float32).reshape(8, 6), ZSTD)
    both = side(spec, ZSTD)
    move = by_hand(Placement.whole(spec, spec), both, both, "copy", spec.storage, 1)
    plan, ends = Plan((move,), 64 << 20, 1), Ends(store, Folder(), {"w": ZSTD})
    from reshard.engine.movers import passthrough

    monkeypatch.setattr(passthrough, "_copy_range", lambda *_: None)
    with pytest.raises(
        VerificationError,
        match=r"^tensor 'w', chunk \[0, 0\]: '.*' has 0 bytes after \d+ were copied",
    ):
        run(plan, batches(plan, ends), ends, str(tmp_path / "t"))
