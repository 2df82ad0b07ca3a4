"""Conversions report bytes that changed: in their own output and in their source."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from awscrt.checksums import crc32c

import reshard
from reshard.conversion import open_target
from reshard.errors import CorruptError, MemoryBudgetError, VerificationError
from reshard.storage.local import transaction as local_transaction
from tests.orbax_trees import put, save_standard

LAYOUT = {"mesh": {"axes": ["x"], "shape": [8]}, "rules": [{"match": "w", "axes": [None, "x"]}]}


@pytest.fixture
def source(tmp_path):
    values = np.random.default_rng(0).normal(size=(64, 48)).astype(np.float32)
    return save_standard(tmp_path / "source", {"w": put(values, "data"), "b": put(values[0])})


def chunk_of(path: Path) -> Path:
    """The first chunk's file of ``w``."""
    return min(p for p in (path / "w").rglob("*") if p.is_file() and p.name != "zarr.json")


def change(path: Path, *, sum_again: bool) -> None:
    """Flips a bit of a raw chunk; with ``sum_again`` its checksum is made to fit."""
    data = bytearray(path.read_bytes())
    data[7] ^= 16
    if sum_again:
        data[-4:] = crc32c(bytes(data[:-4])).to_bytes(4, "little")
    path.write_bytes(bytes(data))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda p: change(p, sum_again=True), r"'w' was read back with digest \w{16}, but \w{16} was written"),
        (lambda p: change(p, sum_again=False), r"'w', chunk \[0, 0\]: its CRC32C is recorded as"),
        (cut, r"'w', chunk \[0, 0\]: "),
        (Path.unlink, r"'w', chunk \[0, 0\]"),
    ],
    ids=["other bytes", "wrong checksum", "short", "gone"],
)  # fmt: skip
def test_output_that_changes_before_it_is_read_back_is_discarded(
    source, tmp_path, monkeypatch, damage, found
):
    monkeypatch.setattr(local_transaction, "forget_cached", lambda root: damage(chunk_of(root)))
    with pytest.raises(VerificationError, match=found) as caught:
        reshard.convert(source, tmp_path / "target", layout=LAYOUT, check="readback")
    assert str(caught.value).endswith(
        "the output was discarded; check the device that holds it, then run again"
    )
    assert {p.name for p in tmp_path.iterdir()} == {"source"}


@pytest.mark.parametrize("compression", ["none", "keep"])
def test_a_source_that_changed_since_it_was_written_is_refused(source, tmp_path, compression):
    middle = tmp_path / "middle"
    reshard.convert(source, middle, layout=LAYOUT)
    change(chunk_of(middle), sum_again=True)
    with pytest.raises(
        CorruptError, match=r"'w' in .*middle' has digest \w+, but \w+ was recorded"
    ):
        reshard.convert(middle, tmp_path / "target", compression=compression, check="readback")
    assert not (tmp_path / "target").exists()
    assert reshard.verify(middle).differences == 1


@pytest.mark.parametrize("compression", ["none", "zstd", "keep"])
def test_written_bytes_are_those_of_the_chunks(source, tmp_path, compression):
    report = reshard.convert(source, tmp_path / "target", layout=LAYOUT, compression=compression)
    files = [p for p in (tmp_path / "target").glob("[wb]/**/*") if p.is_file()]
    chunks = [p for p in files if p.name != "zarr.json"]
    assert report.written_bytes == sum(p.stat().st_size for p in chunks)


def test_pieces_of_one_chunk_are_written_once(tmp_path):
    """Each of four layers is a stripe of every row of the stacked kernel, which is one chunk."""
    layers = {f"layer{n}": np.full((32, 16), n, np.float32) for n in range(4)}
    reshard.save(tmp_path / "layers", layers)
    stacked = {"map": [{"from": "layer{l}", "to": "kernel", "shape": "f e -> e l f"}]}
    plan = reshard.plan(tmp_path / "layers", map=stacked, compression="none")
    report = reshard.convert(
        tmp_path / "layers", tmp_path / "stacked", map=stacked, compression="none"
    )
    assert plan.written_bytes == report.written_bytes == 4 * 32 * 16 * 4 + 4


def test_what_cannot_be_read_back_within_the_memory_is_refused_before_it_is_written(
    tmp_path, monkeypatch
):
    values = np.random.default_rng(0).normal(size=(1 << 21,)).astype(np.float32)
    save_standard(tmp_path / "source", {"w": put(values)})
    packed, limits = tmp_path / "blosc", {"max_memory": "10MiB", "workers": 1}
    reshard.convert(tmp_path / "source", packed, compression="blosc")
    keep = {"compression": "keep", **limits}
    assert reshard.convert(packed, tmp_path / "copy", **keep).tensors[0].strategy == "copy"
    monkeypatch.setattr(open_target, "lock_target", None)
    with pytest.raises(
        MemoryBudgetError, match=r"to read 'w', .* but 10 MiB are allowed"
    ) as caught:
        reshard.convert(packed, tmp_path / "proved", check="readback", **keep)
    with pytest.raises(MemoryBudgetError, match="to read 'w'"):
        reshard.verify(packed, **limits)
    assert (
        reshard.verify(packed, max_memory=caught.value.smallest_bytes, workers=1).differences == 0
    )


def test_digests_are_recorded_beside_the_tree(source, tmp_path):
    report = reshard.convert(source, tmp_path / "target", layout=LAYOUT)
    recorded = json.loads((tmp_path / "target/slices.json").read_text())["tensors"]
    assert {n: t["crc64nvme"] for n, t in recorded.items()} == {
        t.target: t.target_digest for t in report.tensors
    }
