"""The CRC-32 that each archive has of its elements: a flipped bit is named with tensor and file, whatever reads it."""

from __future__ import annotations

import zlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import reshard
from reshard.errors import CorruptError
from tests.dcp_files import (
    Item,
    Part,
    Tensor,
    cut,
    entry,
    tensor_archive,
    turned,
    whole,
    write_dcp,
    write_items,
)

W = np.arange(1, 61, dtype=np.int32).reshape(12, 5)
AGREES = ("checksum", "its bytes have the CRC that its format records")


class Stored(NamedTuple):
    """How a tensor is stored, and some of its bytes as they are in its last file."""

    tensor: Any
    bits: bytes


MIXED = Tensor("int32", W.shape, [Part((0, 0), W[:6]), Part((6, 0), turned(W[6:], (1, 0)))])
FORMS = {
    "whole": Stored(W, W.tobytes()),
    "in pieces": Stored(cut(W, 4), W[3:6].tobytes()),
    "turned": Stored(turned(W, (1, 0)), W.T.tobytes()),
    "partly turned": Stored(MIXED, W[6:].T.tobytes()),
}


def flip(folder: Path, bits: bytes) -> Path:
    """Changes one bit in the place that has these bytes; the file."""
    for file in folder.glob("*.distcp"):
        data = bytearray(file.read_bytes())
        at = data.find(bits)
        if at >= 0:
            data[at + len(bits) // 2] ^= 8
            file.write_bytes(data)
            return file
    raise AssertionError("no file has these bytes")


def verdict(folder: Path, name: str = "w") -> tuple[str, str]:
    (found,) = (one for one in reshard.verify(folder).tensors if one.name == name)
    return found.status, found.detail


def damage(name: str, file: Path | None) -> str:
    where = f" in {file}" if file else ""
    return (
        f"tensor {name!r}: its bytes{where} do not have the CRC-32 that was recorded when it was written; the source is damaged there: "
        "restore it from a replica or take another step"
    )


@pytest.mark.parametrize("form", FORMS)
def test_verify_names_tensor_and_file(tmp_path: Path, form: str) -> None:
    tensor, bits = FORMS[form]
    folder = write_dcp(
        tmp_path / "x", {"w": tensor, "other": W + 1, "rate": 0.5, "none": W[:0]}, files=3
    )
    assert {verdict(folder, name) for name in ("w", "other", "rate", "none")} == {AGREES}
    assert not reshard.verify(folder).warnings
    file = flip(folder, bits)
    report = reshard.verify(folder)
    found = {one.name: (one.status, one.detail) for one in report.tensors}
    assert found == {
        "w": ("damaged", damage("w", file)),
        "other": AGREES,
        "rate": AGREES,
        "none": AGREES,
    }


@pytest.mark.parametrize("form", ["whole", "in pieces"])
def test_convert_and_restore_check_it_while_they_read(tmp_path: Path, form: str) -> None:
    tensor, bits = FORMS[form]
    folder = write_dcp(tmp_path / "x", {"w": tensor})
    report = reshard.convert(folder, tmp_path / "sound", to="orbax")
    assert report.read_bytes == W.nbytes
    file = flip(folder, bits)
    with pytest.raises(CorruptError) as error:
        reshard.convert(folder, tmp_path / "made", to="orbax")
    assert str(error.value) == damage("w", file)
    assert not (tmp_path / "made").exists()
    with pytest.raises(CorruptError) as error:
        reshard.restore(folder)
    assert str(error.value) == damage("w", None)


def test_an_archive_without_crcs_is_not_said_to_agree(tmp_path: Path) -> None:
    """torch writes zeros where it is told not to compute them (``set_crc32_options``)."""
    data = tensor_archive(W)
    without = data.replace(crc_in(), bytes(4))
    assert without != data
    write_items(tmp_path, {"w": entry(whole(W))}, [Item("w", (0, 0), without)])
    assert verdict(tmp_path)[0] == "not recorded"
    (warning,) = reshard.verify(tmp_path).warnings
    assert warning.endswith("carries no checksum; reshard fingerprint records digests")


def crc_in() -> bytes:
    """The four bytes that an archive has as the CRC of the elements of W."""
    return zlib.crc32(W.tobytes()).to_bytes(4, "little")


def test_workers_in_other_processes_check_it_too(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "x", {"w": cut(W, 4)})
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        reshard.convert(folder, tmp_path / "sound", to="orbax", executor=executor)
        file = flip(folder, W[3:6].tobytes())
        with pytest.raises(CorruptError) as error:
            reshard.convert(folder, tmp_path / "made", to="orbax", executor=executor)
    assert str(error.value) == damage("w", file)
