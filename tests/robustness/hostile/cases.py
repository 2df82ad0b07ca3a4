"""A case: one specimen damaged by a number. The same number gives the same damage."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from zstandard import ZstdError

from reshard.errors import ReshardError
from tests.robustness.hostile.damage_codecs import damage_chunk
from tests.robustness.hostile.damage_files import (
    add_many,
    files_of,
    rename_leaf,
    replace_file,
    replace_folder,
)
from tests.robustness.hostile.damage_json import damage_json_file
from tests.robustness.hostile.damage_ocdbt import damage_bytes, damage_database
from tests.robustness.hostile.damage_one_file import damage_hdf5, damage_index
from tests.robustness.hostile.damage_safetensors import damage_header
from tests.robustness.hostile.specimens import WITHIN

_JSON = (
    "_METADATA",
    "_sharding",
    "_CHECKPOINT_METADATA",
    "_strings.json",
    "slices.json",
    ".zarray",
    "zarr.json",
)


def source_of(folder: Path, what: str) -> Path:
    """The path that names the checkpoint of a case, by what was done."""
    return folder / "src" / WITHIN.get(what.partition(":")[0], "")


def make_case(seed: int, specimens: Path, folder: Path) -> str:
    """Makes ``folder/src``, damaged, beside ``folder/outside``; says what was done."""
    rng = random.Random(seed)
    name = rng.choice(sorted(p.name for p in specimens.iterdir()))
    root = Path(shutil.copytree(specimens / name, folder / "src"))
    (folder / "outside").mkdir()
    (folder / "outside" / "canary").write_bytes(b"untouched")
    done = [_damage(rng, root) for _ in range(rng.choice((1, 1, 1, 2)))]
    return f"{name}: {', '.join(done)}"


def _damage(rng: random.Random, root: Path) -> str:
    return rng.choice(_DAMAGES)(rng, root)


def _json(rng: random.Random, root: Path) -> str:
    found = [p for p in files_of(root) if _holds_json(p)]
    kinds = sorted({p.name for p in found})
    kind = rng.choice(kinds) if kinds else ""
    try:
        path = rng.choice([p for p in found if p.name == kind])
        damage = damage_header if path.suffix == ".safetensors" else damage_json_file
        return damage(rng, path)
    except (
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ):  # damaged before
        return "nothing"


def _holds_json(path: Path) -> bool:
    return (
        path.name in _JSON
        or path.parent.name == "array_metadatas"
        or path.name.endswith((".safetensors", ".safetensors.index.json"))
    )


def _one_file(rng: random.Random, root: Path) -> str:
    """An index of TensorFlow, or an HDF5 file; else any bytes."""
    for path in files_of(root):
        if path.suffix == ".index":
            return damage_index(rng, path)
        if path.suffix == ".h5":
            return damage_hdf5(rng, path)
    return _bytes(rng, root)


def _bytes(rng: random.Random, root: Path) -> str:
    found = files_of(root)
    if not found:  # the only file is gone
        return "nothing"
    kind = rng.choice(sorted({p.name for p in found}))
    path = rng.choice([p for p in found if p.name == kind])
    if path.stat().st_size < 1 << 24:
        path.write_bytes(damage_bytes(rng, path.read_bytes(), rng.choice((1, 2, 10))))
    return f"bytes of {path.relative_to(root)}"


def _chunk(rng: random.Random, root: Path) -> str:
    found = [
        p
        for p in files_of(root)
        if p.name not in _JSON and p.parent != root and p.stat().st_size < 1 << 24
    ]
    if not found:
        return "nothing"
    path = rng.choice(found)
    path.write_bytes(damage_chunk(rng, path.read_bytes()))
    return f"chunk {path.relative_to(root)}"


def _database(rng: random.Random, root: Path) -> str:
    found = [p.parent for p in files_of(root) if p.name == "manifest.ocdbt"]
    if not found:
        return _json(rng, root)
    try:
        return damage_database(rng, rng.choice(found))
    except (IndexError, ValueError, OSError, ZstdError):  # damaged before
        return "nothing"


def _guarded(damage: Callable[[random.Random, Path], str]) -> Callable[[random.Random, Path], str]:
    def do(rng: random.Random, root: Path) -> str:
        try:
            return damage(rng, root)
        except (
            OSError,
            ReshardError,
            ValueError,
            IndexError,
            KeyError,
            TypeError,
            AttributeError,
        ):  # damaged before
            return "nothing"

    return do


_DAMAGES = (
    _json, _json, _json, _json, _bytes, _bytes, _chunk, _chunk, _database, _database,
    *map(_guarded, (_one_file, _one_file, replace_file, replace_file, replace_folder, rename_leaf, add_many)),
)  # fmt: skip
