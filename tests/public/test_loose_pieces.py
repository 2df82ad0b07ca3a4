"""Checkpoints whose tensors are stored in loose boxes: everything that takes a source reads them as numpy does."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reshard
from reshard.errors import CorruptError
from reshard.formats import known_formats, loose_pieces
from reshard.geometry.grid import Box
from tests.campaigns import examples, singly
from tests.formats.safetensors.build import dcp_file
from tests.fresh_process import run_fresh
from tests.geometry.tilings import tilings
from tests.loose_pieces import PIECES, hollow_pieces, write_pieces
from tests.source_reads import Reads

DTYPES = [np.dtype(name) for name in ("uint8", "float32", "int64")] + [np.dtype(ml_dtypes.bfloat16)]

Tilings = list[tuple[tuple[int, ...], list[Box]]]


def tensors_of(several: Tilings) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(len(several))
    return {
        f"t{n}": rng.integers(0, 100, shape).astype(DTYPES[n % len(DTYPES)])
        for n, (shape, _) in enumerate(several)
    }


def layout_for(tensors: Mapping[str, np.ndarray]) -> dict:
    """Every dimension that two or three devices divide is split over them."""
    rules = []
    for name, array in tensors.items():
        axes: list[str | None] = [None] * array.ndim
        free = [("a", 2), ("b", 3)]
        for dim, size in enumerate(array.shape):
            axis = next((x for x in free if size % x[1] == 0), None)
            if axis is not None:
                free.remove(axis)
                axes[dim] = axis[0]
        rules.append({"match": f"^{name}$", "axes": axes})
    return {"mesh": {"axes": ["a", "b"], "shape": [2, 3]}, "rules": rules}


def check_all_uses(source: Path, tensors: Mapping[str, np.ndarray], work: Path) -> None:
    """Converts, restores, verifies and streams, each compared with numpy."""
    layout = layout_for(tensors)
    reshard.convert(source, work / "out", layout=layout, to="orbax", check="readback")
    for files in ("shards", "ranks"):
        reshard.convert(source, work / files, layout=layout, to="safetensors", files=files)
    for path in (source, work / "out", work / "shards", work / "ranks"):
        restored = reshard.restore(path)
        for name, array in tensors.items():
            assert np.asarray(restored[name]).tobytes() == array.tobytes(), (path, name)
    assert reshard.verify(source, work / "out").differences == 0
    opened = reshard.open_checkpoint(source)
    for name, array in tensors.items():
        start = tuple(n // 3 for n in array.shape)
        box = Box(
            start, tuple(max(a + 1, n * 3 // 4) for a, n in zip(start, array.shape, strict=True))
        )
        assert b"".join(opened.stream(name, box)) == array[box.slices].tobytes(), name
    shard = b"".join(opened.stream_shard(5, layout))
    of_target = reshard.open_checkpoint(work / "out").stream_shard(5, layout)
    assert shard == b"".join(of_target)


@settings(max_examples=examples(8))
@given(st.lists(tilings(longest=12, depth=5), min_size=1, max_size=4), st.randoms())
def test_loose_shards_of_torch_are_read_as_whole_tensors(several: Tilings, random: object) -> None:
    tensors = tensors_of(several)
    files: list[dict[str, tuple[np.ndarray, list[int]]]] = []
    for (name, array), (_, boxes) in zip(tensors.items(), several, strict=True):
        for number, box in enumerate(boxes):
            files += [{}] * (number + 1 - len(files))
            files[number] = {**files[number], name: (array[box.slices], list(box.start))}
    random.shuffle(files)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        source.mkdir()
        for number, pieces in enumerate(files, 1):
            dcp_file(source, number, pieces)
        check_all_uses(source, tensors, Path(folder))


@settings(max_examples=examples(8))
@given(
    st.lists(tilings(longest=12, depth=5), min_size=1, max_size=3),
    st.sampled_from([64, 1 << 20]),
    st.data(),
)
def test_pieces_with_orders_of_their_own_are_read_as_whole_tensors(
    several: Tilings, chunk_bytes: int, data: st.DataObject
) -> None:
    tensors = tensors_of(several)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(known_formats, "FORMATS", (*known_formats.FORMATS, PIECES))
        patch.setattr(loose_pieces, "MANY_CHUNKS", 1)
        for limit in ("JOIN_BYTES", "SPLIT_BYTES", "AT_ONCE_BYTES"):
            patch.setattr(loose_pieces, limit, chunk_bytes)
        source = Path(folder) / "source"
        for (name, array), (_, boxes) in zip(tensors.items(), several, strict=True):
            orders = st.permutations(range(array.ndim)).map(tuple)
            write_pieces(source, name, array, [(box, data.draw(orders)) for box in boxes])
        check_all_uses(source, tensors, Path(folder))


def pinwheel(rows: int, columns: int) -> list[Box]:
    """Five boxes of which no cut splits none."""
    r, c = rows // 3, columns // 3
    return [
        Box((0, 0), (r, 2 * c)),
        Box((0, 2 * c), (2 * r, columns)),
        Box((2 * r, c), (rows, columns)),
        Box((r, 0), (rows, c)),
        Box((r, c), (2 * r, 2 * c)),
    ]


def pinwheel_checkpoint(folder: Path) -> tuple[Path, np.ndarray]:
    """36 MB in five files."""
    values = np.arange(9_000_000, dtype="float32").reshape(3000, 3000)
    folder.mkdir()
    for number, box in enumerate(pinwheel(3000, 3000), 1):
        dcp_file(folder, number, {"w": (values[box.slices], list(box.start))})
    return folder, values


MESH = {"mesh": {"axes": ["x"], "shape": [4]}, "rules": [{"match": "w", "axes": [None, "x"]}]}


def test_each_byte_of_loose_shards_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, values = pinwheel_checkpoint(tmp_path / "source")
    uses = {
        "convert": lambda: reshard.convert(source, tmp_path / "out", layout=MESH, to="orbax"),
        "restore": lambda: reshard.restore(source),
        "verify": lambda: reshard.verify(source, tmp_path / "out"),
        "stream": lambda: b"".join(reshard.open_checkpoint(source).stream("w")),
    }
    for use, call in uses.items():
        with monkeypatch.context() as patch:
            reads = Reads(patch)
            call()
        data = {str(p): p.stat().st_size for p in source.iterdir()}
        for path, size in data.items():
            header = size - size // 4000 * 4000  # rows have 4,000 bytes or 8,000
            assert reads.times_read(path, header, size) == {1: size - header}, (use, path)
    np.testing.assert_array_equal(reshard.restore(tmp_path / "out")["w"], values)


CONVERT = """
    import json, sys
    import reshard
    from reshard.formats import known_formats
    from tests.loose_pieces import PIECES
    known_formats.FORMATS = (*known_formats.FORMATS, PIECES)
    source, target, layout = sys.argv[1:]
    report = reshard.convert(source, target, layout=json.loads(layout), workers=2, max_memory="48MiB", to="orbax")
    print(json.dumps(sorted({t.strategy for t in report.tensors})))
"""


@pytest.mark.xdist_group("memory")
@pytest.mark.parametrize(("axes", "order"), singly([["x"], [None, "x"]], [(0, 1), (1, 0)]))
def test_peak_memory_stays_within_the_budget(
    tmp_path: Path, order: tuple[int, int], axes: list[str | None]
) -> None:
    """192 MiB in five pieces."""
    boxes = pinwheel(6144, 8192)
    hollow_pieces(tmp_path / "source", "w", (6144, 8192), [(box, order) for box in boxes])
    layout = {"mesh": {"axes": ["x"], "shape": [8]}, "rules": [{"match": "w", "axes": axes}]}
    target = tmp_path / "out"
    outcome = run_fresh(CONVERT, str(tmp_path / "source"), str(target), json.dumps(layout))
    shutil.rmtree(target)  # pytest keeps what tests leave
    assert outcome.printed == ["scatter" if order == (0, 1) else "weave"]
    assert outcome.peak_bytes <= (128 + 48) << 20


def test_a_shard_that_is_cut_short_after_it_was_opened_is_named(tmp_path: Path) -> None:
    source, _ = pinwheel_checkpoint(tmp_path / "source")
    opened = reshard.open_checkpoint(source)
    stream = iter(opened.stream("w"))
    next(stream)
    cut = sorted(source.iterdir())[2]
    os.truncate(cut, cut.stat().st_size - 4000)
    with pytest.raises(CorruptError) as error:
        b"".join(stream)
    assert "tensor 'w', chunk [1, 0]: the file of its piece [2000:3000, 1000:3000], " in str(
        error.value
    )
    assert str(cut) in str(error.value)


def test_a_shard_that_changes_changes_the_state_of_a_stream(tmp_path: Path) -> None:
    source, _ = pinwheel_checkpoint(tmp_path / "source")
    opened = reshard.open_checkpoint(source)
    slices = ("0:10, 0:10", "2000:2010, 2000:2010")
    before = [opened.stream("w", where).state for where in slices]
    os.utime(sorted(source.iterdir())[2], ns=(1, 1))
    after = [opened.stream("w", where).state for where in slices]
    assert after[0] == before[0]
    assert after[1] != before[1]
