"""Lanes: tensors that both sides stream are read, compared and compressed in threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import reshard
from reshard.deltas import compare, windows
from reshard.deltas.payloads import TensorPayload
from reshard.formats.base import Reader
from reshard.maps.mapped import MappedTensor

OPTIONS: dict[str, Any] = {"max_memory": "64MiB", "workers": 3}


@pytest.fixture
def versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two versions of tensors of many sizes, whose windows are of 64 KiB at most, and one that is empty."""
    monkeypatch.setattr(windows, "CELL_BYTES", 64 << 10)
    rng = np.random.default_rng(0)
    sizes = {f"t{n}": (int(rng.integers(1, 90_000)), 2) for n in range(12)}
    old = {n: rng.integers(0, 9, s).astype(np.int16) for n, s in sizes.items()}
    old["empty"] = np.zeros((0, 4), np.float32)
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        save_file(old, tmp_path / name / "model.safetensors")
        for array in old.values():
            array.reshape(-1)[::77] += 1
    return tmp_path


def test_a_delta_of_many_lanes_gives_the_new_version(versions: Path) -> None:
    old, new, delta = versions / "old", versions / "new", versions / "weight_v000001"
    report = reshard.delta(old, new, delta, **OPTIONS)
    assert set(report.tensors) == {f"t{n}" for n in range(12)}
    reshard.apply(old, [delta], versions / "served")
    served, wanted = (load_file(versions / n / "model.safetensors") for n in ("served", "new"))
    assert served.keys() == wanted.keys()
    assert all(np.array_equal(served[name], wanted[name]) for name in wanted)


def test_any_number_of_lanes_gives_the_same_bytes(versions: Path) -> None:
    old, new = versions / "old", versions / "new"
    files = []
    for workers in (1, 4):
        delta = versions / str(workers) / "weight_v000001"
        reshard.delta(old, new, delta, max_memory="64MiB", workers=workers)
        files.append({path.name: path.read_bytes() for path in delta.iterdir()})
    assert files[0] == files[1]


def refuse(_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("adds", "progress", "error"), [(3, None, OSError), (99, refuse, KeyboardInterrupt)]
)
def test_an_error_ends_every_lane(
    adds: int,
    progress: Callable[[object], None] | None,
    error: type[BaseException],
    versions: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No thread writes to the spool after it was closed, and nothing is left."""
    add, added = TensorPayload.add, []

    def counted(self: TensorPayload, *args: object) -> None:
        if len(added) == adds:
            raise OSError(5, "Input/output error")
        add(self, *args)
        added.append(1)

    monkeypatch.setattr(TensorPayload, "add", counted)
    with pytest.raises(error):
        reshard.delta(
            versions / "old", versions / "new", versions / "weight_v000001",
            progress=progress, **OPTIONS,
        )  # fmt: skip
    assert not [one for one in threading.enumerate() if one.name.startswith("reshard.delta")]
    assert sorted(path.name for path in versions.iterdir()) == ["new", "old"]


def test_what_a_map_puts_together_goes_in_rounds(
    versions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tensors become one; the lanes have the others."""
    streamed: list[str] = []
    streams = compare.stream_windows

    def told(reader: Reader, made: list[MappedTensor], *rest: Any, **named: Any) -> Any:
        streamed.extend(one.spec.name for one in made)
        return streams(reader, made, *rest, **named)

    monkeypatch.setattr(compare, "stream_windows", told)
    rules = [{"from": "t0", "to": "t0", "shape": "r c -> c r"}]
    rules += [{"from": f"t{n}", "to": f"t{n}"} for n in range(1, 12)]
    delta = versions / "weight_v000001"
    reshard.delta(versions / "old", versions / "new", delta, map={"map": rules, "drop": ["empty"]}, **OPTIONS)  # fmt: skip
    assert set(streamed) == {f"t{n}" for n in range(1, 12)}


@pytest.fixture
def compressed(tmp_path: Path) -> list[Path]:
    """Two steps with a tensor that is one compressed chunk of 8 MiB, which no seek divides."""
    weights = np.zeros((1024, 2048), np.uint32)
    made = []
    for step in range(2):
        weights[step] += 1
        reshard.save(tmp_path / "raw" / str(step), {"up": weights})
        made.append(tmp_path / "run" / str(step))
        reshard.convert(tmp_path / "raw" / str(step), made[-1], compression="zstd:19")
    return made


def test_a_chunk_that_fits_no_lane_takes_the_memory_of_all(
    compressed: list[Path], tmp_path: Path
) -> None:
    report = reshard.delta(*compressed, tmp_path / "weight_v000001", max_memory="96MiB", workers=8)
    assert report.changed == 2048


def test_the_memory_that_a_chunk_needs_is_said_and_enough(
    compressed: list[Path], tmp_path: Path
) -> None:
    target = tmp_path / "weight_v000001"
    with pytest.raises(
        reshard.MemoryBudgetError,
        match=r"needs at least \d+ MiB of buffers .*; the windows of both sides and what is open take the rest: allow \d+MiB in all",
    ) as caught:
        reshard.delta(*compressed, target, max_memory="12MiB", workers=1)
    reshard.delta(*compressed, target, max_memory=caught.value.smallest_bytes, workers=1)
