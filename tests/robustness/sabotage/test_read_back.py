"""Damage after the digest of the written bytes was taken: only reading the output again finds it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.engine.movers import passthrough
from reshard.engine.write import chunk_files, sinks
from reshard.errors import CorruptError, VerificationError
from reshard.storage.local import files as local_files
from tests.campaigns import singly
from tests.orbax_trees import save_pytree
from tests.robustness.sabotage.moves import Nth

ROWS = {"mesh": {"axes": ["x"], "shape": [4]}, "rules": [{"match": ".", "axes": ["x"]}]}
COLUMNS = {**ROWS, "rules": [{"match": ".", "axes": [None, "x"]}]}
REPLICATED = {
    "mesh": {"axes": ["x"], "shape": [4]},
    "rules": [{"match": ".", "axes": [None, None]}],
}


@pytest.fixture
def source(tmp_path):
    """Chunks of 1 MiB in rows, zstd."""
    values = np.random.default_rng(0).normal(size=(1024, 1024)).astype(np.float32)
    plain = save_pytree(tmp_path / "plain", {"w": values})
    reshard.convert(
        plain, tmp_path / "source", layout=ROWS, compression="zstd", chunk_bytes=1 << 20
    )
    return tmp_path / "source"


def flipped_on_its_way(original: Callable[..., int], fd: int, data: Any, offset: int) -> int:
    """The kernel gets other bytes than are in memory."""
    wrong = bytearray(data)
    wrong[len(wrong) // 2] ^= 4
    return original(fd, wrong, offset)


def written_elsewhere(original: Callable[..., int], fd: int, data: Any, offset: int) -> int:
    return original(fd, data, offset + 16 if offset == 0 else offset - 16)


def never_written(_: Callable[..., int], __: int, data: Any, ___: int) -> int:
    return len(data)


def zeros_instead(original: Callable[..., int], fd: int, data: Any, offset: int) -> int:
    return original(fd, bytes(len(data)), offset)


def convert(source: Path, target: Path, check: str, compression: str) -> Any:
    kept = compression == "keep"
    return reshard.convert(
        source,
        target,
        layout=ROWS if kept else COLUMNS,
        compression=compression,
        chunk_bytes=1 << 20,
        check=check,
        workers=1,
    )


def assert_only_read_back_tells(source: Path, folder: Path, compression: str) -> None:
    """ "written" says no more than it knows; "readback" publishes nothing."""
    with pytest.raises(VerificationError, match=r"read.* back"):
        convert(source, folder / "proved", "readback", compression)
    assert not (folder / "proved").exists()


@pytest.mark.parametrize(
    ("n", "compression", "defect"),
    singly([1, 2], ["none", "zstd"], [flipped_on_its_way, written_elsewhere, never_written]),
)
def test_the_kernel_does_not_do_what_it_says(source, tmp_path, monkeypatch, defect, compression, n):
    write, strike = os.pwrite, Nth(n, defect, os.pwrite)

    def of_chunks(fd, data, offset):
        """Lock and journal are no part of what is published."""
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        return (strike if "/checkpoint/" in path else write)(fd, data, offset)

    monkeypatch.setattr(local_files.os, "pwrite", of_chunks)
    convert(source, tmp_path / "written", "written", compression)
    assert strike.struck
    strike.calls = 0
    assert_only_read_back_tells(source, tmp_path, compression)
    monkeypatch.undo()
    assert_found_later(tmp_path / "written")


def assert_found_later(target: Path) -> None:
    """What was recorded of it tells, whenever it is read."""
    with suppress(CorruptError):
        assert reshard.verify(target).differences > 0


def test_a_chunk_is_closed_with_the_checksum_of_another(source, tmp_path, monkeypatch):
    """Never silent: whoever reads the chunk is refused."""

    def other(original, fd, path, crc32c, stored_bytes):
        return original(fd, path, crc32c ^ 1, stored_bytes)

    strike = Nth(2, other, chunk_files.end_chunk)
    monkeypatch.setattr(sinks, "end_chunk", strike)
    monkeypatch.setattr(chunk_files, "end_chunk", strike)
    convert(source, tmp_path / "written", "written", "none")
    assert strike.struck
    strike.calls = 0
    assert_only_read_back_tells(source, tmp_path, "none")
    assert_found_later(tmp_path / "written")


def test_a_chunk_is_encoded_wrongly(source, tmp_path, monkeypatch):
    """Its frame is sound and has its own checksum, but it is another chunk's."""
    first: list[Any] = []

    def of_the_first(original, encoding, data):
        first.append(bytes(data))
        return original(encoding, memoryview(first[0]))

    monkeypatch.setattr(chunk_files, "encode_chunk", lambda *args: of_the_first(encode, *args))
    from reshard.formats.codecs import encode_chunk as encode

    convert(source, tmp_path / "written", "written", "zstd")
    first.clear()
    assert_only_read_back_tells(source, tmp_path, "zstd")
    monkeypatch.undo()
    assert_found_later(tmp_path / "written")


@pytest.mark.parametrize("wrong", ["other chunk", "flipped"])
def test_an_encoded_chunk_is_not_what_it_should_be(source, tmp_path, monkeypatch, wrong):
    """No element is seen where chunks are copied as they are, and the report says "encoded" of them."""
    sizes: list[Any] = []

    def copy_wrongly(extent, out, _, **__):
        sizes.append(extent)
        data = bytearray(Path(extent.path).read_bytes()[extent.offset :][: extent.length])
        if wrong == "flipped":
            data[len(data) // 2] ^= 1
        else:
            first = Path(sizes[0].path).read_bytes()[sizes[0].offset :][: sizes[0].length]
            data = bytearray(first)
            data += bytes(max(0, extent.length - len(data)))
        os.pwrite(out, data[: extent.length], 0)
        return passthrough.CRC32C_OF_CHECKED  # what was read was right

    monkeypatch.setattr(passthrough, "copy_range", copy_wrongly)
    report = convert(source, tmp_path / "written", "written", "keep")
    assert {t.proof for t in report.tensors} == {"encoded"}
    sizes.clear()
    assert_only_read_back_tells(source, tmp_path, "keep")


@pytest.mark.parametrize(("defect", "copy"), singly([flipped_on_its_way, zeros_instead], range(4)))
def test_one_of_several_copies_is_written_wrongly(source, tmp_path, monkeypatch, defect, copy):
    """Files of ranks hold what is replicated once each; readers of the whole tensor look at the first only."""
    options = {"to": "safetensors", "files": "ranks", "layout": REPLICATED}
    write, strike = os.pwrite, Nth(1, defect, os.pwrite)

    def of_one_file(fd, data, offset):
        path = Path(f"/proc/self/fd/{fd}").readlink()
        is_struck = path.name.startswith(f"model-rank-{copy:05d}") and offset >= 4096
        return (strike if is_struck else write)(fd, data, offset)

    monkeypatch.setattr(local_files.os, "pwrite", of_one_file)
    reshard.convert(source, tmp_path / "written", workers=1, **options)
    assert strike.struck
    strike.calls = 0
    with pytest.raises(VerificationError, match=r"does not read back|was read back"):
        reshard.convert(source, tmp_path / "proved", check="readback", workers=1, **options)
    assert strike.struck
    assert [p.name for p in tmp_path.iterdir() if "proved" in p.name] == []
    monkeypatch.undo()
    (verdict,) = reshard.verify(tmp_path / "written").tensors
    assert verdict.status == "damaged"
    if copy:
        assert "but both should hold the same slice" in verdict.detail
