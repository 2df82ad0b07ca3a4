"""Payloads that cannot be what a delta holds: each is refused by its text, and nothing appears."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import zstandard
from safetensors.numpy import save_file

from reshard.api.deltas import apply
from reshard.errors import CorruptError, FormatError
from tests.delta_layout import CHECKSUMS, write_delta, write_full

OLD = bytes(range(100))
NEW = bytes([1, *OLD[1:]])
LIKE = {"w": np.frombuffer(OLD, np.uint8)}
FILE = "model-00000-of-00001.safetensors"


def frame(payload: bytes, level: int = 1) -> bytes:
    return zstandard.ZstdCompressor(level=level).compress(payload)


def overwrite(count: int, places: list[int], values: bytes) -> bytes:
    return frame(struct.pack(f"<I{len(places)}I", count, *places) + values)


def delta_of(tmp_path: Path, encoding: str, payload: bytes) -> tuple[Path, Path]:
    """A base, and a delta with this payload."""
    base = write_full(tmp_path / "v0", {"w": OLD}, LIKE)
    delta = write_delta(tmp_path, 1, {"w": OLD}, {"w": NEW}, encoding)
    digest = CHECKSUMS["xxh3-128"](NEW)
    save_file({"w": np.frombuffer(payload, np.uint8)}, delta / FILE, metadata={"w": digest})
    return base, delta


WIDE = bytes.fromhex("28b52ffd") + bytes([0, 16 << 3])
"""The header of a frame, of which no byte can be decoded: the window is refused before that is tried."""

SHORT = "its zstd frame should decode to 100 bytes, but its header says 99"


@pytest.mark.parametrize(
    ("encoding", "payload", "text"),
    [
        ("xor", frame(bytes(99)), SHORT),
        ("xor", b"no frame", "it is not a zstd frame"),
        ("xor", frame(bytes(100)) + b"more", "4 bytes follow the end of its zstd frame"),
        ("xor", frame(np.random.default_rng(1).bytes(100))[:-9], "its encoded bytes end after"),
        ("overwrite", overwrite(101, [0], b"a"), "it should change 101 bytes, but the tensor has 100"),
        ("overwrite", overwrite(2, [5], b"a"), "its zstd frame should decode to 14 bytes, but its header says 9"),
        ("overwrite", overwrite(2, [5, 5], b"ab"), "its positions should ascend, but one at or behind 0 does not"),
        ("overwrite", overwrite(2, [5, 4], b"ab"), "its positions should ascend, but one at or behind 0 does not"),
        ("overwrite", overwrite(2, [5, 100], b"ab"), "it changes byte 100, but the tensor has 100 bytes"),
        ("overwrite", frame(b"abc"), "it should begin with a count of 4 bytes, but has 3"),
        ("overwrite", WIDE, "its zstd frame needs a window of 67108864 bytes, but its recorded level allows 524288"),
        ("overwrite", b"", "zstd cannot decode it"),
        ("xor", b"", "it is not a zstd frame"),
    ],
)  # fmt: skip
def test_a_payload_that_cannot_be_one(
    tmp_path: Path, encoding: str, payload: bytes, text: str
) -> None:
    base, delta = delta_of(tmp_path, encoding, payload)
    with pytest.raises(CorruptError) as error:
        apply(base, [delta], tmp_path / "served")
    said = str(error.value)
    assert said.startswith(f"tensor 'w', chunk [0], version 000001: {text}"), said
    assert f"(stored in {delta / FILE}, " in said
    assert not (tmp_path / "served").exists()


def test_a_frame_that_needs_a_large_window_is_refused(tmp_path: Path) -> None:
    size = 16 << 20
    like = {"w": np.zeros(size, np.uint8)}
    base = write_full(tmp_path / "v0", {"w": bytes(size)}, like)
    delta = write_delta(tmp_path, 1, {"w": bytes(size)}, {"w": b"a" + bytes(size - 1)})
    wide = zstandard.ZstdCompressionParameters.from_level(1, window_log=23)
    payload = zstandard.ZstdCompressor(compression_params=wide).compress(b"a" + bytes(size - 1))
    save_file({"w": np.frombuffer(payload, np.uint8)}, delta / FILE, metadata={"w": "0" * 32})
    with pytest.raises(CorruptError, match="its zstd frame needs a window of 8388608 bytes, but its recorded level allows 524288"):  # fmt: skip
        apply(base, [delta], tmp_path / "served")


def test_a_bomb_takes_no_more_memory_than_its_tensor(tmp_path: Path) -> None:
    base, delta = delta_of(tmp_path, "xor", frame(bytes(1 << 30)))
    with pytest.raises(CorruptError, match="should decode to 100 bytes, but its header says 1073741824"):  # fmt: skip
        apply(base, [delta], tmp_path / "served", max_memory="64MiB")


REMEDY = "; restore the folder from a copy, or publish a full version"


def test_files_that_are_not_what_the_index_lists(tmp_path: Path) -> None:
    base = write_full(tmp_path / "v0", {"w": OLD}, LIKE)
    delta = write_delta(tmp_path, 1, {"w": OLD}, {"w": NEW})
    sound = {"w": np.frombuffer(frame(bytes(100)), np.uint8)}

    def refusal(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> str:
        save_file(arrays, delta / FILE, metadata=metadata)
        with pytest.raises(FormatError) as error:
            apply(base, [delta], tmp_path / "served")
        return str(error.value)

    where = f"{delta / FILE}: the payload of 'w'"
    assert refusal({"x": sound["w"]}, {"x": "0" * 32}) == (
        f"{delta}/model.safetensors.index.json says that 'w' is in '{FILE}', which does not hold it{REMEDY}"
    )
    assert refusal(sound, {"x": "0" * 32}) == (
        f"{where} has no checksum in the metadata of its file{REMEDY}"
    )
    assert refusal(sound, {"w": "0" * 31}) == (
        f"{where}: its checksum is '{'0' * 31}'; expected 32 hex digits of xxh3-128{REMEDY}"
    )
    assert refusal({"w": np.zeros(3, "f4")}, {"w": "0" * 32}) == (
        f"{where} should be U8 with one dimension, but is float32 of shape [3]{REMEDY}"
    )
    assert refusal({**sound, "x": sound["w"]}, {"w": "0" * 32}) == (
        f"{delta / FILE} holds 'x', which the index does not list there{REMEDY}"
    )


def test_a_folder_of_another_version(tmp_path: Path) -> None:
    base = write_full(tmp_path / "v0", {"w": OLD}, LIKE)
    delta = write_delta(tmp_path, 1, {"w": OLD}, {"w": NEW}).rename(tmp_path / "weight_v000002")
    with pytest.raises(CorruptError) as error:
        apply(base, [delta], tmp_path / "served")
    assert str(error.value) == (
        f"{delta}/model.safetensors.index.json is of the version 000001, but the folder is weight_v000002{REMEDY}"
    )
