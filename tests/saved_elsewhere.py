"""Small checkpoints as torch, Megatron, TensorFlow and Keras save them, made without these libraries: the same two tensors in each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

import reshard
from reshard.checksums.crc import CRC32C
from reshard.formats.tensorflow.index import (
    NUMBERS,
    STRING,
    BundleEntry,
    entry_bytes,
    header_bytes,
    slice_key,
)
from reshard.formats.tensorflow.strings import Strings, stored_strings
from reshard.formats.tensorflow.table import table_bytes
from tests.dcp_files import cut, write_dcp
from tests.pickled import Call, Global
from tests.state_files import write_state

ROWS = np.arange(600, dtype=np.float32).reshape(60, 10)
BIAS = np.arange(7, dtype=np.int64)


def of_torch(folder: Path) -> Path:
    return write_dcp(folder / "step-7", {"rows": cut(ROWS, 3), "bias": BIAS}, files=2)


def of_megatron(folder: Path) -> Path:
    made = write_dcp(folder / "iter_0000007", {"rows": cut(ROWS, 4), "bias": BIAS}, files=3)
    (made / "metadata.json").write_text(
        '{"sharded_backend": "torch_dist", "sharded_backend_version": 1}'
    )
    return made


def of_trainer(folder: Path) -> Path:
    return write_state(
        folder / "checkpoint-7" / "pytorch_model.bin", {"rows": ROWS, "bias": BIAS}
    ).parent


def of_tensorflow(folder: Path) -> Path:
    reshard.save(folder / "saved", {"rows": ROWS, "bias": BIAS})
    layout = {"partitions": [{"match": "rows", "fixed_shards": 3, "axis": 1}]}
    reshard.convert(folder / "saved", folder / "ckpt-7", to="tensorflow", layout=layout)
    return folder / "ckpt-7"


def of_keras(folder: Path) -> Path:
    reshard.save(folder / "saved", {"rows": ROWS, "bias": BIAS})
    reshard.convert(folder / "saved", folder / "m.weights.h5")
    return folder / "m.weights.h5"


SOURCES: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "dcp": (of_torch, "step-7", ".metadata"),
    "torch_dist": (of_megatron, "iter_0000007", ".metadata"),
    "torch": (of_trainer, "checkpoint-7", ""),
    "tensorflow": (of_tensorflow, "ckpt-7", ""),
    "keras": (of_keras, "m.weights.h5", ""),
}
"""Of each format what makes a checkpoint, its name, and the file that says that it is finished."""


def of_objects(folder: Path) -> Path:
    """A checkpoint of torch with values that are not read."""
    others = {f"object{n}": Call(Global("builtins", "set"), ([n],)) for n in range(3)}
    return write_dcp(folder / "step-7", {"rows": cut(ROWS, 3), "bias": BIAS, **others})


def of_strings(folder: Path) -> Path:
    """A checkpoint of TensorFlow with strings, in slices of columns."""
    index, data = {b"": header_bytes(1)}, bytearray()
    for name, array in (("rows", ROWS), ("bias", BIAS)):
        found = array.tobytes()
        entry = BundleEntry(
            NUMBERS[array.dtype.name], array.shape, 0, len(data), len(found), CRC32C.of(found)
        )
        index[name.encode()] = entry_bytes(entry)
        data += found
    slices = (((0, 2), (0, 1)), ((0, 2), (1, 2)))
    index[b"words"] = entry_bytes(BundleEntry(STRING, (2, 3), slices=slices))
    for extents, words in zip(slices, ([b"a", b"d"], [b"b", b"", b"e", b"ff"]), strict=True):
        stored, crc = stored_strings(Strings(np.array([len(w) for w in words]), b"".join(words)))
        shape = tuple(length for _, length in extents)
        entry = BundleEntry(STRING, shape, 0, len(data), len(stored), crc)
        index[slice_key(b"words", extents)] = entry_bytes(entry)
        data += stored
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ckpt-7.index").write_bytes(table_bytes(sorted(index.items())))
    (folder / "ckpt-7.data-00000-of-00001").write_bytes(data)
    return folder / "ckpt-7"
