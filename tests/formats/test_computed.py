"""Computed tensors of any grids: what is restored, converted and streamed is what numpy computes of whole tensors."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

import reshard
from reshard.arithmetic.average import SameFormula
from reshard.checkpoint import OpenedCheckpoint
from reshard.conversion.check_target import check_target
from reshard.conversion.convert import convert_targets
from reshard.engine.decode.chunk_reader import ChunkFacts, open_chunk
from reshard.engine.decode.computed_stream import windows
from reshard.engine.limits import limits_of
from reshard.errors import CorruptError, PlanError
from reshard.formats.base import Reader
from reshard.formats.computed.formula import Formula
from reshard.formats.computed.tensors import Operand, computed_reader, computed_tensor
from reshard.formats.contents import SourceChunk
from reshard.formats.registry import CheckpointPath, open_reader
from reshard.geometry.grid import Box, Grid
from reshard.storage.location import Location
from reshard.verification.verify import verify_checkpoints
from tests.campaigns import examples

BLOCK = 4


class ScaledSum(Formula, frozen=True):
    """``a * scale + b``: the scale is of blocks of rows, and read with the first."""

    most: int

    @property
    def window_elements(self) -> int:
        return self.most

    def boxes(self, box: Box) -> Sequence[Box]:
        rows = Box((box.start[0] // BLOCK,), (-(-box.stop[0] // BLOCK),))
        return box, box, rows

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        a, b, scale = operands
        each = np.arange(box.start[0], box.stop[0]) // BLOCK - box.start[0] // BLOCK
        out[...] = a * scale[each].reshape(-1, *(1,) * (a.ndim - 1)) + b


class Scaled(Struct, frozen=True):
    """Makes ``sum`` of ``a``, ``b`` and ``scale``."""

    most: int = 8
    option: tuple[str, int] = ("scaled", 1)
    text: str = "scaled"
    tensor_bytes: int = 1000

    def applied(self, base: Reader, root: Location) -> Reader:
        del root
        a, b = base.tensors["a"].spec, base.tensors["b"].spec
        spec = replace(a, name="sum", storage=a.storage.common(b.storage), chunk_shape=None)
        operands = [
            Operand.of(base, "a"),
            Operand.of(base, "b"),
            Operand.of(base, "scale", is_held=True),
        ]
        made = computed_tensor(spec, ScaledSum(self.most), operands)
        return computed_reader(base, {"a": made}, left_out={"b", "scale"})

    places = ()


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts small tensors as large ones are cut."""
    monkeypatch.setattr("reshard.formats.computed.tensors.CHUNK_BYTES", 256)


def arrays(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(len(shape))
    whole = {n: rng.integers(-99, 99, shape).astype(np.float32) for n in "ab"}
    return {
        **whole,
        "scale": np.arange(1, -(-shape[0] // BLOCK) + 1, dtype=np.float32),
        "kept": np.arange(3),
    }


def expected(tree: dict[str, np.ndarray]) -> np.ndarray:
    each = np.arange(len(tree["a"])) // BLOCK
    return tree["a"] * tree["scale"][each].reshape(-1, *(1,) * (tree["a"].ndim - 1)) + tree["b"]


def saved(
    folder: Path, tree: dict[str, np.ndarray], cuts: Sequence[tuple[str, ...]], **options: Any
) -> CheckpointPath:
    rules = [{"match": f"^{n}$", "axes": list(axes)} for n, axes in zip("ab", cuts, strict=True)]
    layout = {
        "mesh": {"axes": ["x", "y"], "shape": [2, 3]},
        "rules": rules,
        "unmatched": "replicate",
    }
    reshard.save(folder / "plain", tree)
    reshard.convert(folder / "plain", folder / "cut", layout=layout, **options)
    return CheckpointPath.at(str(folder / "cut"))


AXES = st.permutations(["x", "y", None]).map(lambda axes: tuple(axes[:2]))
STORED = st.sampled_from(
    [
        {"to": "orbax", "compression": "zstd"},
        {"to": "orbax"},
        {"to": "safetensors", "files": "dcp"},
        {"to": "dcp"},
    ]
)


@settings(max_examples=examples(60))
@given(
    st.tuples(st.integers(1, 7), st.integers(1, 4)), AXES, AXES, STORED, st.integers(1, 40), STORED
)
def test_any_grids(
    size: tuple[int, int], of_a: Any, of_b: Any, stored: Any, most: int, target: Any
) -> None:
    tree = arrays((size[0] * 6, size[1] * 6))
    with tempfile.TemporaryDirectory() as folder:
        chosen = replace(
            saved(Path(folder), tree, (of_a, of_b), **stored), computed=(Scaled(most),)
        )
        opened = OpenedCheckpoint(chosen)
        restored = opened.restore()
        assert sorted(restored) == ["kept", "sum"]
        assert np.array_equal(restored["sum"], expected(tree))
        part = b"".join(opened.stream("sum", "1:5,2:4"))
        assert part == expected(tree)[1:5, 2:4].tobytes()
        layout = {
            "mesh": {"axes": ["y"], "shape": [2]},
            "rules": [{"match": "sum", "axes": [None, "y"]}],
            "unmatched": "replicate",
        }
        limits = limits_of("64MiB", 1)
        checked = check_target(reshard.Target(f"{folder}/made", layout=layout, **target), limits)
        report = convert_targets(chosen, [checked], None, None, None).reports[0]
        assert len(report.tensors) == 2
        found = reshard.restore(f"{folder}/made")
        assert np.array_equal(found["sum"], expected(tree))


@given(st.integers(1, 30), st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=12))
def test_a_chunk_is_read_in_any_steps(
    cut_folder: Path, most: int, steps: list[tuple[bool, int]]
) -> None:
    chosen = CheckpointPath.at(str(cut_folder / "cut"))
    reader = Scaled(most).applied(open_reader(chosen), chosen.root)
    stored = reader.tensors["sum"]
    whole = expected(arrays((18, 6)))
    for index in stored.spec.storage.indices():
        chunk = SourceChunk.at(index, stored.spec, reader)
        data = whole[chunk.box.slices].tobytes()
        at = 0
        with closing(open_chunk(ChunkFacts.of(stored), chunk)) as stream:
            for is_read, count in steps:
                nbytes = min(4 * count, len(data) - at)
                out = bytearray(nbytes)
                if is_read:
                    stream.readinto(memoryview(out))
                    assert out == data[at : at + nbytes]
                else:
                    stream.skip(nbytes)
                at += nbytes
            assert stream.close_checked()


@pytest.fixture(scope="module")
def cut_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("computed")
    saved(folder, arrays((18, 6)), (("x", None), (None, "x")), to="orbax", compression="zstd")
    return folder


def test_the_key_names_what_is_computed(tmp_path: Path) -> None:
    chosen = saved(tmp_path, arrays((6, 6)), (("x", "y"), ("x", "y")))
    checked = check_target(reshard.Target(tmp_path / "made"), limits_of("64MiB", 1))
    convert_targets(replace(chosen, computed=(Scaled(),)), [checked], None, None, None)
    with pytest.raises(reshard.TargetExistsError):
        convert_targets(chosen, [checked], None, None, None)


def test_a_flip_of_an_operand_is_found_by_its_digest(tmp_path: Path) -> None:
    tree = arrays((24, 6))
    chosen = saved(tmp_path, tree, (("x", None), (None, "y")), to="safetensors")
    file = next((tmp_path / "cut").glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    at = data.rindex(tree["scale"].tobytes())
    data[at] ^= 1
    file.write_bytes(bytes(data))
    checked = check_target(reshard.Target(tmp_path / "made"), limits_of("64MiB", 1))
    with pytest.raises(
        CorruptError, match=r"tensor 'scale': its bytes have the digest \w+, but \w+ was recorded"
    ):
        convert_targets(replace(chosen, computed=(Scaled(),)), [checked], None, None, None)
    assert not (tmp_path / "made").exists()
    opened = replace(chosen, computed=(Scaled(),))
    found = verify_checkpoints(opened, None, limits_of("64MiB", 1))
    (verdict,) = [each for each in found.tensors if each.status == "damaged"]
    assert (verdict.name, found.differences > 0) == ("sum", True)
    assert re.fullmatch(r"'scale', of which it is made, has the digest \w+, but \w+ was recorded when it was written", verdict.detail)  # fmt: skip


def test_an_identity_is_not_carried(tmp_path: Path) -> None:
    chosen = replace(
        saved(tmp_path, arrays((6, 6)), (("x", "y"), ("x", "y"))), computed=(Scaled(),)
    )
    checked = check_target(
        reshard.Target(tmp_path / "made", identity="carry"), limits_of("64MiB", 1)
    )
    with pytest.raises(
        PlanError, match="are computed as they are read, so that an identity cannot be carried"
    ):
        convert_targets(chosen, [checked], None, None, None)


@given(
    st.lists(st.integers(0, 5), min_size=0, max_size=3),
    st.lists(st.integers(1, 6), min_size=3, max_size=3),
    st.lists(st.sampled_from([1, 1, 2, 4]), min_size=3, max_size=3),
    st.integers(1, 30),
)
def test_windows_tile_a_box_in_order(
    starts: list[int], sizes: list[int], grain: list[int], most: int
) -> None:
    rank = len(starts)
    units = grain[:rank]
    start = tuple(s * u for s, u in zip(starts, units, strict=True))
    box = Box(start, tuple(a + n for a, n in zip(start, sizes, strict=False)))
    seen = np.zeros(box.shape, int)
    flat = np.arange(max(1, box.size)).reshape(box.shape or (1,)) if rank else np.zeros(())
    order = []
    for window in windows(box, units, most):
        seen[window.relative_to(start).slices] += 1
        order += flat[window.relative_to(start).slices].ravel().tolist()
        assert all(a % u == 0 for a, u in zip(window.start, units, strict=True))
    assert (seen == 1).all()
    assert order == sorted(order)


def test_grids(tmp_path: Path) -> None:
    def grids(**options: Any) -> tuple[Grid, Grid]:
        folder = tmp_path / str(options)
        chosen = saved(folder, arrays((24, 24)), (("x", None), ("x", "y")), **options)
        base = open_reader(chosen)
        made = Scaled().applied(base, chosen.root)
        return base.tensors["a"].spec.storage, made.tensors["sum"].spec.storage

    stored, made = grids(compression="zstd")
    assert made.common(stored) == made
    _, made = grids(to="safetensors")
    assert made == Grid.regular((24, 24), (2, 24))


def test_a_checkpoint_of_many_operands_is_changed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reshard.save(tmp_path / "base", {f"w{n}": np.ones(2, np.float32) for n in range(4)})
    base = open_reader(CheckpointPath.at(str(tmp_path / "base")))
    made = {
        name: computed_tensor(stored.spec, SameFormula(name, ("",)), [Operand.of(base, name)])
        for name, stored in base.tensors.items()
    }
    reader, calls = computed_reader(base, made), list[bool]()
    kind, real = type(base.chunks), type(base.chunks).with_missing
    monkeypatch.setattr(kind, "with_missing", lambda s, r, may: calls.append(may) or real(s, r, may))  # fmt: skip
    changed = reader.chunks.with_missing(reader, True)
    assert calls == [True]
    assert all(tensor.may_be_missing for tensor in changed.tensors.values())
