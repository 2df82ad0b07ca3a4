"""Damage within one file of metadata: an index of TensorFlow whose checksums are right, and an HDF5 file's offsets and sizes."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

from reshard.formats.tensorflow.table import entries, table_bytes
from reshard.storage.location import locate
from tests.robustness.hostile.damage_ocdbt import damage_bytes

HDF5_MAGIC = b"\x89HDF"
_WORD = 8
_NUMBERS = (0, 1, 7, 8, 24, 96, 2**16, 2**31, 2**32, 2**63, 2**64 - 1)


def damage_index(rng: random.Random, path: Path) -> str:
    """Changes a key or the message behind it; the blocks' checksums are those of what is there then."""
    with closing(locate(str(path)).open()) as file:
        found = dict(entries(file, path.stat().st_size, str(path)))
    key = rng.choice(sorted(found))
    how = rng.randrange(5)
    if how == 0:
        found[damage_bytes(rng, key, 1)] = found.pop(key)
    elif how == 1:
        del found[key]
    elif how == 2:
        found[key] = found[rng.choice(sorted(found))]
    else:
        found[key] = damage_bytes(rng, found[key], rng.choice((1, 1, 3)))
    path.write_bytes(table_bytes(sorted(found.items())))
    return f"{('key', 'lost', 'swapped', 'message', 'message')[how]} {key[:40]!r} of {path.name}"


def damage_hdf5(rng: random.Random, path: Path) -> str:
    """Changes numbers of the metadata, which is in front: to others of the file, and to absurd ones."""
    out = bytearray(path.read_bytes())
    words = range(min(len(out), 1 << 14) - _WORD)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.choice(words)
        from_ = rng.choice(words)
        number = rng.choice(_NUMBERS).to_bytes(_WORD, "little")
        data = rng.choice((bytes(out[from_ : from_ + _WORD]), number, rng.randbytes(1)))
        out[at : at + len(data)] = data
    path.write_bytes(out)
    return f"numbers of {path.name}"
