"""Files of Keras that are cut short or damaged: an error of one line or no change, in bounded time, and digests prove every array."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import reshard
from reshard.errors import CorruptError
from reshard.formats.keras import datasets
from tests.campaigns import every, examples
from tests.formats.keras.small import DATA, put, refusal


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    file = put(tmp_path)
    whole = file.read_bytes()
    for size in (0, 7, 8):
        file.write_bytes(whole[:size])
        assert refusal(file, CorruptError) == (
            f"FILE has {size} bytes, but its metadata names bytes at 0; it was cut short or is damaged: restore the file from a copy"
        )
    for size in (100, 800, len(whole) - 1):
        file.write_bytes(whole[:size])
        said = refusal(file, CorruptError)
        assert said.startswith("FILE is damaged, or no HDF5 file: h5py says 'Unable to ")
        assert f"(truncated file: eof = {size}, " in said
        assert said.endswith("; restore the file from a copy")


def test_elements_beyond_the_end(tmp_path: Path) -> None:
    file = put(tmp_path)
    with h5py.File(file) as made:
        offset = made["layers/dense/vars/0"].id.get_offset()
    content = file.read_bytes()
    place = content.index(offset.to_bytes(8, "little") + (96).to_bytes(8, "little"))
    moved = (len(content) - 4).to_bytes(8, "little")
    file.write_bytes(content[:place] + moved + content[place + 8 :])
    said = refusal(file, CorruptError)
    assert said.startswith("FILE is damaged, or no HDF5 file: h5py says \"'Unable to ")
    assert "invalid dataset size" in said


def test_elements_beyond_the_end_that_hdf5_lets_pass(tmp_path: Path) -> None:
    with h5py.File(put(tmp_path)) as file:
        offset = file["layers/dense/vars/0"].id.get_offset()
        with pytest.raises(CorruptError) as caught:
            datasets.read_datasets(file, "FILE", offset + 95)
    assert str(caught.value) == (
        f"FILE has {offset + 95:,} bytes, but 'layers/dense/vars/0' ends at {offset + 96:,}; it was cut short: restore it from a copy"
    )


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
    with pytest.raises(
        CorruptError,
        match=r"^'a/vars/0' in '.*made\.weights\.h5' has digest \w{16}, but \w{16} was recorded when it was written: its bytes changed since",
    ):
        reshard.convert(made, tmp_path / "again", to="orbax")
    assert reshard.verify(made).differences == 1


FUZZ = """
import random, sys
import reshard
from reshard.errors import ReshardError

whole, file, rng = open(sys.argv[1], "rb").read(), sys.argv[2], random.Random(int(sys.argv[3]))
for _ in range(int(sys.argv[4])):
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


@pytest.mark.parametrize("seed", range(2))
def test_any_damage_is_an_error_or_no_change(seed: int, tmp_path: Path) -> None:
    """In a process of its own: HDF5 is a library in C, which a damaged file may stop or never let go."""
    file = put(tmp_path)
    if seed % 2:
        reshard.convert(file, tmp_path / "whole.weights.h5")
        file = tmp_path / "whole.weights.h5"
    words = [
        sys.executable,
        "-c",
        FUZZ,
        str(file),
        str(tmp_path / "x.weights.h5"),
        str(seed),
        str(examples(250)),
    ]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


FLIPS = """
import logging, sys
import reshard
from reshard.errors import ReshardError

logging.disable(logging.WARNING)
file, step = sys.argv[1], int(sys.argv[2])

def found():
    values = reshard.restore(file)["a"]["vars"]
    return {name: array.tobytes() for name, array in values.items()}

def is_recorded():
    return any(tensor.digest for tensor in reshard.inspect(file).tensors.values())

sound, whole = open(file, "rb").read(), found()
assert is_recorded()
for at in range(0, len(sound), step):
    data = bytearray(sound)
    data[at] ^= 1 << at % 8
    with open(file, "wb") as out:
        out.write(data)
    try:
        assert not is_recorded() or found() == whole, at
    except ReshardError as error:
        assert "\\n" not in str(error), error
"""


def test_a_flip_changes_nothing_while_the_record_is_there(tmp_path: Path) -> None:
    """HDF5's metadata has no checksum. Digests prove every array, unless the flip hides the record of them."""
    reshard.save(tmp_path / "saved", {"a": {"vars": {"0": DATA, "1": np.arange(5)}}})
    made = tmp_path / "made.weights.h5"
    reshard.convert(tmp_path / "saved", made)
    words = [sys.executable, "-c", FLIPS, str(made), str(every(11))]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
