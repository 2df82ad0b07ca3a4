"""The files that are read as weights of Keras, and the meaning of their names."""

from __future__ import annotations

import re
from contextlib import closing

from reshard.formats.format import PlaceNames
from reshard.formats.keras.hdf5 import MAGIC
from reshard.storage.location import Location

ENDING = ".weights.h5"
"""Keras loads and saves weights by this ending alone."""

ARCHIVE = ".keras"
"""Of a whole model, a zip with weights in it."""

HDF5_ENDINGS = (".h5", ".hdf5")
"""Of other HDF5 files, which are looked for where no file is named."""

ONLY_FILE = f"model{ENDING}"
"""The file of a target while it is written; also the one in a ``.keras`` archive."""

_SHARD = re.compile(r"_[0-9]{5}\.weights\.h5\Z")


def is_keras(names: PlaceNames) -> bool:
    """True for an HDF5 file, and for a file with a name that Keras gives, so that a damaged one gets an error of its own."""
    return names.kind == "file" and (names.name.endswith(ENDING) or is_hdf5(names.root))


def is_hdf5(file: Location) -> bool:
    """True if a file begins as HDF5."""
    with closing(file.open()) as opened:
        return opened.read(0, len(MAGIC)) == MAGIC


def is_shard(name: str) -> bool:
    """True for the name of one of several files, which Keras writes beside a ``.weights.json``.

    >>> is_shard("model_00001.weights.h5"), is_shard("model.weights.h5")
    (True, False)
    """
    return _SHARD.search(name) is not None


def weights_text(folder: Location) -> str:
    """A hint for a folder that is not a checkpoint but holds an HDF5 file; "" for any other folder.

    Files that a ``.weights.json`` lists are parts of one.
    """
    names = [entry.name for entry in folder.entries() if not entry.is_folder]
    found = sorted(name for name in names if name.endswith(HDF5_ENDINGS))
    if not found or any(name.endswith(".weights.json") for name in names):
        return ""
    return f"it holds an HDF5 file, so name that: {folder / found[0]}"
