"""Chains that are proved without writing: ``reshard.verify`` with deltas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import reshard
from tests.delta_layout import CHECKSUMS, bytes_of, changed, write_full

LIKE = {
    "a": np.arange(600, dtype="f4").reshape(20, 30),
    "b": np.arange(9, dtype="i4"),
    "c": np.ones(4, "u1"),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Full versions ``v0`` to ``v2``, and the deltas between them; ``a`` changes twice, ``b`` once, ``c`` never."""
    states = [bytes_of(LIKE)]
    states.append(changed(states[0], 0.01, 1) | {"b": states[0]["b"], "c": states[0]["c"]})
    states.append(changed(states[1], 0.01, 2) | {"c": states[0]["c"]})
    for number, state in enumerate(states):
        write_full(tmp_path / f"v{number}", state, LIKE)
    for number in (1, 2):
        reshard.delta(tmp_path / f"v{number - 1}", tmp_path / f"v{number}", tmp_path / f"weight_v{number:06d}")  # fmt: skip
    return tmp_path


def chain(run: Path) -> list[Path]:
    return [run / "weight_v000001", run / "weight_v000002"]


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 4
    file.write_bytes(data)


def test_every_tensor_has_the_checksum_that_the_deltas_record(run: Path) -> None:
    found = reshard.verify(run / "v0", deltas=chain(run))
    assert found.differences == 0
    assert [(t.status, t.detail) for t in found.tensors] == [
        ("checksum", "the checksums of what it is made of were compared")
    ] * 3
    assert found.warnings == ()


def test_a_full_version_is_compared_bit_by_bit(run: Path) -> None:
    assert reshard.verify(run / "v0", run / "v2", deltas=chain(run)).differences == 0
    found = reshard.verify(run / "v0", run / "v1", deltas=chain(run))
    assert [(t.name, t.status) for t in found.tensors if t.is_difference] == [
        ("a", "different"),
        ("b", "different"),
    ]


def test_damage_of_the_base_is_found_in_tensors_that_nothing_changes(run: Path) -> None:
    flip(run / "v0" / "model.safetensors", -1)
    found = reshard.verify(run / "v0", deltas=chain(run))
    (damaged,) = (t for t in found.tensors if t.is_difference)
    bad = CHECKSUMS["xxh3-128"](b"\x01\x01\x01\x05")
    good = CHECKSUMS["xxh3-128"](b"\x01\x01\x01\x01")
    assert (damaged.name, damaged.status) == ("c", "damaged")
    assert damaged.detail == (
        f"tensor 'c', chunk [0], version 000002: its bytes have the xxh3-128 {bad}, but {good} is recorded, which the delta does not change: the base "
        "is another one, or it is damaged; give the right base, restore it from a copy, or start from a full version"
    )


def test_all_damage_is_listed(run: Path) -> None:
    for delta in chain(run):
        (file,) = delta.glob("*.safetensors")
        flip(file, -3)
    found = reshard.verify(run / "v0", deltas=chain(run))
    told = {t.name: (t.status, t.detail) for t in found.tensors}
    assert told["a"][0] == "damaged"
    assert "version 000001" in told["a"][1]  # it is not read any further
    assert told["b"][0] == "damaged"
    assert "version 000002" in told["b"][1]
    assert told["c"][0] == "checksum"


def test_a_chain_with_a_hole_is_no_chain(run: Path) -> None:
    with pytest.raises(reshard.PlanError, match="changes the version 000001, but the version before it here is 000000"):  # fmt: skip
        reshard.verify((run / "v0").rename(run / "weight_v000000"), deltas=chain(run)[1:])


def test_the_identity_of_a_version_needs_no_full_version(run: Path) -> None:
    root = reshard.identify(run / "v2").root
    assert reshard.verify(run / "v0", deltas=chain(run), identity=root).differences == 0
    assert reshard.verify(run / "v0", deltas=chain(run)[:1], identity=root).differences


def test_what_is_wrong_with_the_deltas_is_no_damage_of_a_base_that_has_records(run: Path) -> None:
    reshard.convert(run / "v0", run / "base")
    for deltas, kind, text in (
        ([run / "nowhere"], reshard.MissingError, "nowhere does not exist: expected the folder of a delta"),
        ([*chain(run), chain(run)[1]], reshard.PlanError, "the version 000002 is given twice"),
        ([run / "v0"], reshard.FormatError, "v0 has model.safetensors and no model.safetensors.index.json, as a full version and no delta has; give it as the base, or name the folder of a delta"),
    ):  # fmt: skip
        with pytest.raises(kind, match=text):
            reshard.verify(run / "base", deltas=deltas)
    (run / "base" / "model.safetensors").write_bytes(b"short")
    assert (
        "cannot be opened as a checkpoint"
        in reshard.verify(run / "base", deltas=chain(run)).damage[0]
    )
