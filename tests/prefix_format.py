"""A format whose checkpoints are named by a prefix, as TensorFlow's are: ``run/ckpt-1000`` is ``ckpt-1000.idx`` and
``ckpt-1000.part-00000-of-00002``, …; nothing has the name ``ckpt-1000``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from reshard.formats.format import Format, Mark, PlaceNames
from reshard.formats.orbax.format import ORBAX
from reshard.storage.location import Location
from tests.loose_pieces import open_pieces

INDEX = ".idx"


def write_prefix(prefix: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    """Writes each array in two pieces, one in each of two files."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    files = [prefix.with_name(f"{prefix.name}.part-0000{n}-of-00002") for n in range(2)]
    data = [b"", b""]
    index = {}
    for name, array in arrays.items():
        half, pieces = len(array) // 2, []
        for number, (start, stop) in enumerate([(0, half), (half, len(array))]):
            rest = array.shape[1:]
            at = len(data[number])
            pieces.append(((start, *(0 for _ in rest)), (stop, *rest), files[number].name, at, ()))
            data[number] += array[start:stop].tobytes()
        index[name] = {"dtype": array.dtype.name, "shape": array.shape, "pieces": pieces}
    for file, held in zip(files, data, strict=True):
        file.write_bytes(held)
    prefix.with_name(prefix.name + INDEX).write_text(json.dumps(index))
    return prefix


def prefix_files(root: Location) -> tuple[Location, ...] | None:
    """The index and the data files; None where there is no index, or something has the prefix's own name."""
    folder = root.parent
    if root.exists() or not (folder / f"{root.name}{INDEX}").is_file():
        return None
    names = [entry.name for entry in folder.entries()]
    return tuple(
        folder / name
        for name in names
        if name == root.name + INDEX or name.startswith(f"{root.name}.part-")
    )


def recognise(names: PlaceNames) -> Mark | None:
    files = prefix_files(names.root)
    return None if files is None else Mark(leaves=lambda _: 1, files=files)


PREFIX = Format(
    about=replace(ORBAX.about, name="prefix", marks=f"prefix (*{INDEX})", by_prefix=True),
    recognise=recognise,
    write=ORBAX.write,
    open=lambda root, _: open_pieces(root, root.parent / f"{root.name}{INDEX}", "prefix"),
)
"""A format of tests, which is read; for ``monkeypatch.setattr("reshard.formats.known_formats.FORMATS", …)``."""
