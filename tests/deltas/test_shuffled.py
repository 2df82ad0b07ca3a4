"""The encoding xor-shuffled: smaller for elements of two bytes, read back alike, and unknown to other receivers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

import reshard
from reshard.errors import CorruptError
from reshard.formats.delta.shuffle import SHUFFLED_BYTES, shuffled, unshuffled
from tests import delta_layout
from tests.delta_layout import apply_delta, bytes_of, stored

RNG = np.random.default_rng(2)


def save(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True)
    save_file(arrays, folder / "model.safetensors")
    return folder


def stepped(arrays: dict[str, np.ndarray], rate: float) -> dict[str, np.ndarray]:
    """Some elements go to a neighbour, as after a step of training."""
    made = {}
    for name, array in arrays.items():
        bits = array.view(f"u{array.itemsize}").copy()
        places = RNG.random(bits.shape) < rate
        bits[places] ^= 1
        made[name] = bits.view(array.dtype)
    return made


@given(st.integers(0, SHUFFLED_BYTES // 2), st.integers(0, 2**32 - 1))
def test_a_block_is_put_back(elements: int, seed: int) -> None:
    block = np.random.default_rng(seed).integers(0, 256, 2 * elements, np.uint8)
    assert unshuffled(shuffled(block)).tobytes() == block.tobytes()


def test_the_low_bytes_come_first() -> None:
    block = np.array([0x0201, 0x0403, 0x0605], "<u2").view(np.uint8)
    assert shuffled(block).tolist() == [1, 3, 5, 2, 4, 6]
    assert delta_layout.unshuffled(bytes(shuffled(block))) == block.tobytes()


def test_weights_of_two_bytes_take_fewer_bytes_and_others_as_many(tmp_path: Path) -> None:
    old = {
        "a": RNG.standard_normal((900, 1200)).astype(ml_dtypes.bfloat16),
        "b": RNG.standard_normal((300, 400)).astype("f4"),
        "c": RNG.standard_normal((1001,)).astype("f2"),
        "fp8": RNG.standard_normal((300, 400)).astype(ml_dtypes.float8_e4m3fn),
    }
    new = stepped(old, 0.01)
    start, end = save(tmp_path / "v0", old), save(tmp_path / "v1", new)
    plain = reshard.delta(start, end, tmp_path / "plain" / "weight_v000001")
    target = tmp_path / "weight_v000001"
    report = reshard.delta(start, end, target, encoding="xor-shuffled", file_bytes=1000)
    sizes = {n: (t.stored_bytes, plain.tensors[n].stored_bytes) for n, t in report.tensors.items()}
    assert sizes["a"][0] < 0.92 * sizes["a"][1]
    assert sizes["b"][0] == sizes["b"][1]
    assert sizes["fp8"][0] == sizes["fp8"][1]
    metadata = json.loads((target / "model.safetensors.index.json").read_text())["metadata"]
    assert metadata["delta_encoding"] == "xor-shuffled"
    assert (metadata["target_digest"], metadata["base_digest"]) == (
        plain.target_digest,
        plain.base_digest,
    )
    assert apply_delta(target, bytes_of(old)) == bytes_of(new)
    reshard.apply(start, [target], tmp_path / "served")
    assert stored(tmp_path / "served") == bytes_of(new)
    assert reshard.verify(start, deltas=[target]).differences == 0


def test_tensors_in_windows_and_layers_of_all_encodings(tmp_path: Path) -> None:
    """Neither the windows of a delta nor the blocks of the base are those of the payload."""
    states = [{"w": RNG.standard_normal((2001, 3003)).astype(ml_dtypes.bfloat16)}]
    deltas = []
    start = before = save(tmp_path / "v0", states[0])
    for number, encoding in enumerate(("xor-shuffled", "overwrite", "xor-shuffled", "xor"), 1):
        states.append(stepped(states[-1], 0.001))
        after = save(tmp_path / f"v{number}", states[-1])
        deltas.append(tmp_path / f"weight_v{number:06d}")
        chosen: Any = encoding
        report = reshard.delta(before, after, deltas[-1], encoding=chosen, max_memory="48MiB", workers=2)  # fmt: skip
        assert report.encoding == encoding
        before = after
    reshard.apply(start, deltas, tmp_path / "served", to="orbax", mesh="m=4", max_memory="96MiB", layout={
        "mesh": {"axes": ["m"], "shape": [4]}, "rules": [{"match": "w", "axes": [None, None]}]})  # fmt: skip
    (read,) = reshard.restore(tmp_path / "served").values()
    assert np.asarray(read).tobytes() == bytes_of(states[-1])["w"]


@pytest.mark.parametrize("at", [0.3, 0.9])
def test_a_payload_that_is_cut_short(tmp_path: Path, at: float) -> None:
    old = {"w": RNG.standard_normal((300, 400)).astype(ml_dtypes.bfloat16)}
    start, target = save(tmp_path / "v0", old), tmp_path / "weight_v000001"
    reshard.delta(start, save(tmp_path / "v1", stepped(old, 0.3)), target, encoding="xor-shuffled")
    (file,) = target.glob("*.safetensors")
    data = file.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    payload = np.frombuffer(data[header:], np.uint8)
    digest = json.loads(data[8:header])["__metadata__"]
    save_file({"w": payload[: int(at * len(payload))]}, file, metadata=digest)
    with pytest.raises(CorruptError) as error:
        reshard.apply(start, [target], tmp_path / "served")
    assert str(error.value).startswith(
        "tensor 'w', chunk [0, 0], version 000001: its encoded bytes end after"
    )
    assert not (tmp_path / "served").exists()
