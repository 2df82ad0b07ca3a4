"""State dicts written by hand: shared storages, their checksums, and archives that lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard
from reshard.errors import CorruptError, FormatError
from reshard.formats.state_dict import state
from tests.dcp_files import rebuilt
from tests.pickled import Call, Global, New, Ordered, pickled
from tests.state_files import View, packed, state_archive, write_state

FLAT = np.arange(1, 61, dtype=np.int32)
ROWS = View(FLAT, "0", 20, (4, 5), (5, 1))
TURNED = View(FLAT, "0", 0, (5, 4), (1, 5))
TREE = {
    "all": View(FLAT, "0", 0, (60,), (1,)),
    "rows": ROWS,
    "turned": TURNED,
    "own": FLAT.reshape(12, 5) + 1,
    "own_turned": np.asfortranarray(FLAT.reshape(12, 5) + 2),
    "nothing": FLAT[:0] + 0,
    "opt": {"lr": 0.5, "name": "adam", "none": None, "betas": [1, 2]},
}


def refusal(tmp_path: Path, data: bytes, kind: type[Exception] = FormatError) -> str:
    file = tmp_path / "x.pt"
    file.write_bytes(data)
    with pytest.raises(kind) as error:
        reshard.inspect(file)
    return str(error.value).replace(str(file), "FILE")


def test_tensors_of_one_storage(tmp_path: Path) -> None:
    found = reshard.restore(write_state(tmp_path / "x.pt", TREE))
    assert found["all"].tolist() == FLAT.tolist()
    assert found["rows"].tolist() == FLAT[20:40].reshape(4, 5).tolist()
    assert found["turned"].tolist() == FLAT[:20].reshape(4, 5).T.tolist()
    assert found["own_turned"].tolist() == (FLAT.reshape(12, 5) + 2).tolist()
    assert found["opt"] == {"lr": 0.5, "name": "adam", "none": None, "betas": [1, 2]}


DAMAGED = {
    "the tensor itself": ((FLAT + 1).tobytes(), {"own"}),
    "in another order": ((FLAT.reshape(12, 5) + 2).T.tobytes(), {"own_turned"}),
    "a storage of several": (FLAT.tobytes(), {"all", "rows", "turned"}),
}
"""What is flipped: the bytes of a storage, and the tensors that have it."""


@pytest.mark.parametrize("case", DAMAGED)
def test_verify_names_the_tensors_and_the_file(tmp_path: Path, case: str) -> None:
    bits, names = DAMAGED[case]
    file = write_state(tmp_path / "x.pt", TREE)
    assert {one.status for one in reshard.verify(file).tensors} == {"checksum"}
    assert not any("carries no checksum" in warning for warning in reshard.verify(file).warnings)
    data = bytearray(file.read_bytes())
    data[data.index(bits) + len(bits) // 2] ^= 1
    file.write_bytes(data)
    found = {one.name: one.detail for one in reshard.verify(file).tensors if one.is_difference}
    assert found == {
        name: f"tensor {name!r}: its bytes in {file} do not have the CRC-32 that was recorded when it was written; the source is damaged "
        "there: restore it from a replica or take another step"
        for name in names
    }


def test_convert_checks_what_has_a_record_of_its_own(tmp_path: Path) -> None:
    file = write_state(tmp_path / "x.pt", {"own": FLAT})
    report = reshard.convert(file, tmp_path / "sound", to="orbax")
    assert report.read_bytes == FLAT.nbytes
    data = bytearray(file.read_bytes())
    data[data.index(FLAT.tobytes()) + 3] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptError, match=r"'own': its bytes in .*x\.pt do not have the CRC-32"):
        reshard.convert(file, tmp_path / "made", to="orbax")


def test_a_flipped_bit_of_the_pickle_is_damage(tmp_path: Path) -> None:
    data = state_archive({"name": FLAT})
    assert refusal(tmp_path, data.replace(b"name", b"nama", 1), CorruptError) == (
        "FILE: the record 'data.pkl' has another CRC-32 than its header says; restore the file from a copy"
    )
    report = reshard.verify(tmp_path / "x.pt")
    assert report.differences
    assert "cannot be opened as a checkpoint" in report.damage[0]


def made(value: Any, **storages: bytes) -> bytes:
    return packed(pickled(value), {key.removeprefix("s"): data for key, data in storages.items()})


LIES: dict[str, tuple[bytes, str]] = {
    "no such storage": (
        made({"w": rebuilt("int32", (2,), (1,))}),
        "FILE has no record 'data/0'; expected an archive of torch.save, so restore the file from a copy",
    ),
    "a storage of another size": (
        made({"w": rebuilt("int32", (2,), (1,))}, s0=bytes(12)),
        "FILE has 12 bytes in its record 'data/0'; expected 8, so restore the file from a copy",
    ),
    "beyond its storage": (
        made({"w": rebuilt("int32", (2,), (1,), offset=1, count=2)}, s0=bytes(8)),
        "FILE: 'w': int32 of shape [2] at byte 4 does not fit its storage of 8 bytes; restore the file from a copy",
    ),
    "names that are one": (
        made({"a/b": 1, "a": {"b": 2}}), "FILE: two leaves are named 'a/b' once their keys are joined; rename one where the checkpoint is saved",
    ),
    "a long name": (
        made({"w" * 3000: {"v" * 1999: 1}}), "FILE has a leaf 'wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww'… of 5,000 characters; expected at most 4,096, and none that is NUL",
    ),
    "NUL": (
        made({"a\0b": 1}), "FILE has a leaf 'a\\x00b'… of 3 characters; expected at most 4,096, and none that is NUL",
    ),
    "an object": (
        made(Call(Global("torch", "Size"), ((1,),))), "FILE holds no tensors, numbers or text, but an object of torch.Size; expected what a training saves, such as a state dict",
    ),
    "a number": (
        made(3), "FILE holds no tensors, numbers or text, but one value; expected what a training saves, such as a state dict",
    ),
    "text in an object": (
        made(Call(Global("torch", "Size"), ((1, New(Global("a", "B"), {"x": "text"})),))),
        "FILE holds no tensors, numbers or text, but an object of torch.Size; expected what a training saves, such as a state dict",
    ),
    "big-endian": (
        state_archive({"w": FLAT}).replace(b"little", b"bigger"),
        "FILE: the record 'byteorder' has another CRC-32 than its header says; restore the file from a copy",
    ),
    "a dict in itself": (
        packed(b"\x80\x02}q\0X\1\0\0\0ah\0s.", {}), "FILE holds a value with too many parts, so that it cannot be handled safely",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LIES)
def test_lies_are_refused(tmp_path: Path, case: str) -> None:
    data, said = LIES[case]
    assert refusal(tmp_path, data) == said


def test_values_that_grow_are_not_walked(tmp_path: Path) -> None:
    doubled = b"\x80\x02}X\1\0\0\0a" + b")q\0"
    for number in range(100):
        doubled += b"h" + bytes([number]) + b"\x86q" + bytes([number + 1])
    assert "a value with too many parts" in refusal(tmp_path, packed(doubled + b"s.", {}))


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = state_archive({"aa": 1, "bb": 2, "cc": 3})
    monkeypatch.setattr(state, "MAX_ALL_NAMES_CHARACTERS", 5)
    said = "FILE has more than {} values, or names of more than {} characters together, the most that is read"
    assert refusal(tmp_path, data) == said.format("1,048,576", 5)
    monkeypatch.setattr(state, "MAX_LEAVES", 2)
    assert refusal(tmp_path, state_archive({"a": 1, "b": 2, "c": 3})) == said.format(2, 5)


def test_empty_dicts(tmp_path: Path) -> None:
    def inspected(tree: Any) -> list[str]:
        return [leaf.name for leaf in reshard.inspect(write_state(tmp_path / "x.pt", tree)).leaves]

    assert inspected({}) == []
    assert inspected({"a": Ordered({})}) == ["a"]
