"""What is refused of an HDF5 file, by its text; damage anywhere is an error of one line or no change, in bounded time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import reshard
from reshard.errors import CorruptError, FormatError, MissingError, NotACheckpointError

DATA = np.arange(24, dtype=np.float32).reshape(6, 4)


def one(**options: Any) -> Callable[[h5py.File], None]:
    """A dataset ``a/w`` made with these options."""
    return lambda file: file.create_dataset("a/w", **{"data": DATA, **options}) and None


def link(kind: Any) -> Callable[[h5py.File], None]:
    def make(file: h5py.File) -> None:
        file["a/v"] = DATA
        file["a/w"] = kind

    return make


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((6, 4), np.float32)
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (6, 4))
    file.create_virtual_dataset("a/w", layout)


def group_twice(file: h5py.File) -> None:
    file["a/w"] = DATA
    file["a/b"] = file["a"]


def unwritten(file: h5py.File) -> None:
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    space = h5py.h5s.create_simple((6, 4))
    group = file.create_group("a")
    h5py.h5d.create(group.id, b"w", h5py.h5t.IEEE_F32LE, space, made)


def compact(file: h5py.File) -> None:
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((6, 4))
    group = file.create_group("a")
    h5py.h5d.create(group.id, b"w", h5py.h5t.IEEE_F32LE, space, made)


def opaque(dtype: Any) -> Callable[[h5py.File], None]:
    def make(file: h5py.File) -> None:
        made = file.create_dataset("a/w", data=np.zeros(4, "V2"))
        if dtype is not None:
            made.attrs["dtype"] = dtype

    return make


def other_name(file: h5py.File) -> None:
    file.id.links.create_soft(b"\xfe", b"x")


CASES: dict[str, tuple[Callable[[h5py.File], None], str]] = {
    "an external link": (link(h5py.ExternalLink("/etc/passwd", "/x")), "'a/w' is a link to '/x' in the file '/etc/passwd', and links are not followed"),
    "a soft link": (link(h5py.SoftLink("/a/v")), "'a/w' is a soft link to '/a/v', and links are not followed"),
    "a virtual dataset": (virtual, "'a/w' is a virtual dataset, made of others, perhaps in other files; rewrite the file with 'h5repack"),
    "external storage": (lambda file: file.create_dataset("a/w", DATA.shape, DATA.dtype, external=[("/etc/passwd", 0, 96)]) and None, "'a/w' has its elements in another file (external storage)"),
    "chunks": (one(chunks=(2, 2)), "'a/w' is stored in chunks; rewrite the file with 'h5repack -l CONTI -f NONE OLD NEW'"),
    "gzip": (one(compression="gzip"), "'a/w' is stored in chunks with filters (deflate)"),
    "several filters": (one(shuffle=True, compression="lzf"), "'a/w' is stored in chunks with filters (shuffle, lzf)"),
    "compact": (compact, "'a/w' is stored in its header (compact)"),
    "not written": (unwritten, "'a/w' was made without any elements being written"),
    "big-endian": (one(data=DATA.astype(">f4")), "'a/w' is big-endian, which is not read"),
    "big-endian complex": (one(data=DATA.astype(">c8")), "'a/w' is big-endian, which is not read"),
    "strings": (one(data=np.array([b"a", b"b"])), "'a/w' holds strings, and only numbers are read"),
    "strings of any length": (one(data=["a", "b"]), "'a/w' holds strings, and only numbers are read"),
    "lists": (lambda file: file.create_dataset("a/w", (2,), h5py.vlen_dtype(np.int32)) and None, "'a/w'"),
    "records": (one(data=np.zeros(3, [("x", "f4"), ("y", "i4")])), "'a/w' holds records, and only numbers are read"),
    "no shape": (one(data=h5py.Empty("f4")), "'a/w' is empty without a shape (h5py.Empty)"),
    "a datatype": (lambda file: file.__setitem__("a/w", np.dtype("f4")), "'a/w' is a named datatype"),
    "a group twice": (group_twice, "the group 'a/b' is in the file under another name too"),
    "opaque": (opaque(None), "'a/w' has opaque elements, of 2 bytes and with no attribute 'dtype'"),
    "opaque of another size": (opaque(np.bytes_("int4")), "'a/w' has opaque elements, of 2 bytes and with the attribute 'dtype' 'int4'"),
    "a name of other bytes": (other_name, "the name b'\\xfe' is not UTF-8"),
    "33 names deep": (lambda file: file.create_group("/".join("a" * 300)) and None, "more than are read"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused(case: str, tmp_path: Path) -> None:
    make, said = CASES[case]
    file = tmp_path / "model.weights.h5"
    with h5py.File(file, "w") as made:
        make(made)
    with pytest.raises(FormatError) as caught:
        reshard.inspect(file)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "damaged" not in str(caught.value)


def put(folder: Path) -> Path:
    file = folder / "model.weights.h5"
    with h5py.File(file, "w") as made:
        made["layers/dense/vars/0"] = DATA
        made["layers/dense/vars/1"] = np.float64(2)
        made["layers/dense/vars"].attrs["name"] = "dense"
    return file


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    file = put(tmp_path)
    whole = file.read_bytes()
    for size in (0, 7, 8, 100, 800, len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises(
            CorruptError, match=r"model\.weights\.h5 .*(damaged|cut short)"
        ) as caught:
            reshard.inspect(file)
        assert "\n" not in str(caught.value)


def test_elements_beyond_the_end(tmp_path: Path) -> None:
    file = put(tmp_path)
    with h5py.File(file) as made:
        offset = made["layers/dense/vars/0"].id.get_offset()
    content = file.read_bytes()
    place = content.index(offset.to_bytes(8, "little") + (96).to_bytes(8, "little"))
    moved = (len(content) - 4).to_bytes(8, "little")
    file.write_bytes(content[:place] + moved + content[place + 8 :])
    with pytest.raises(CorruptError, match=r"damaged|cut short"):
        reshard.inspect(file)


def test_what_is_no_hdf5_file(tmp_path: Path) -> None:
    (tmp_path / "model.weights.h5").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(CorruptError, match="is damaged, or no HDF5 file: h5py says"):
        reshard.inspect(tmp_path / "model.weights.h5")
    (tmp_path / "model.h5").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(NotACheckpointError):
        reshard.inspect(tmp_path / "model.h5")
    with pytest.raises(MissingError):
        reshard.inspect(tmp_path / "none.weights.h5")


def test_a_record_that_does_not_fit(tmp_path: Path) -> None:
    reshard.save(tmp_path / "saved", {"a": {"vars": {"0": DATA}}})
    made = tmp_path / "made.weights.h5"
    reshard.convert(tmp_path / "saved", made)
    with h5py.File(made, "r+") as file:
        file["a/vars/0"].id.get_offset()
        file["a/vars/1"] = DATA
    with pytest.raises(CorruptError, match="'a/vars/1' is stored, but not recorded"):
        reshard.inspect(made)
    with h5py.File(made, "r+") as file:
        del file["a/vars/1"]
        file["slices.json"][5] ^= 1
    with pytest.raises(CorruptError, match=r"slices\.json in .*made\.weights\.h5"):
        reshard.inspect(made)


def test_a_flipped_byte_of_data_is_found_by_its_digest(tmp_path: Path) -> None:
    reshard.save(tmp_path / "saved", {"a": {"vars": {"0": DATA}}})
    made = tmp_path / "made.weights.h5"
    reshard.convert(tmp_path / "saved", made)
    with h5py.File(made, "r+") as file:
        file["a/vars/0"][3, 2] += 1
    with pytest.raises(CorruptError, match="a/vars/0"):
        reshard.convert(made, tmp_path / "again", to="orbax")
    assert reshard.verify(made).differences == 1


FUZZ = """
import random, sys
import reshard
from reshard.errors import ReshardError

whole, file, rng = open(sys.argv[1], "rb").read(), sys.argv[2], random.Random(int(sys.argv[3]))
for _ in range(150):
    data = bytearray(whole)
    if rng.random() < 0.3:
        data = data[: rng.randrange(len(data))]
    for _ in range(rng.choice([0, 1, 1, 2, 8])):
        if data:
            data[rng.randrange(len(data))] = rng.choice([0, 255, rng.randrange(256)])
    with open(file, "wb") as out:
        out.write(data)
    try:
        reshard.inspect(file)
    except ReshardError as error:
        assert "\\n" not in str(error), error
"""


@pytest.mark.parametrize("seed", range(4))
def test_any_damage_is_an_error_or_no_change(seed: int, tmp_path: Path) -> None:
    """In a process of its own: HDF5 is a library in C, which a damaged file may stop or never let go."""
    file = put(tmp_path)
    if seed % 2:
        reshard.convert(file, tmp_path / "whole.weights.h5")
        file = tmp_path / "whole.weights.h5"
    words = [sys.executable, "-c", FUZZ, str(file), str(tmp_path / "x.weights.h5"), str(seed)]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
