"""One trial: a bit is flipped, and verify, convert and restore are asked what they make of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import reshard
from benchmarks.flips.specimens import Specimen

Outcome = Literal["refused", "right", "silent", "crashed"]
"""What convert or restore did: refused by an error of ours, gave what it gives undamaged, gave
something else without a word, or ended by an error that is not ours."""

CONVERT: dict[str, Any] = {"mesh": "x=2", "max_memory": "64MiB", "workers": 2}


@dataclass(frozen=True, slots=True)
class Flip:
    """One bit of one file."""

    file: str
    byte: int
    bit: int


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one flip.

    Attributes:
        is_found: whether verify says so, and does not merely fail.
    """

    specimen: Specimen
    kind: str
    flip: Flip
    is_found: bool
    convert: Outcome
    restore: Outcome

    @property
    def is_silent(self) -> bool:
        return not {self.convert, self.restore} <= {"refused", "right"}

    @property
    def is_missed(self) -> bool:
        """Whether verify overlooked damage to this project's own output."""
        return self.specimen.is_output and not self.is_found


def run_trial(specimen: Specimen, kind: str, flip: Flip, scratch: Path) -> Trial:
    """Flips, asks, and puts the file back."""
    _expected(specimen, scratch)
    with flipped(specimen.path, flip):
        found = is_found(specimen.path)
        converted = _convert(specimen, scratch)
        restored = _restore(specimen, scratch)
    return Trial(specimen, kind, flip, found, converted, restored)


@contextmanager
def flipped(root: Path, flip: Flip) -> Iterator[None]:
    """The checkpoint with one bit turned around, for the block; times of change stay, as with a device."""
    path = root / flip.file
    sound, status = path.read_bytes(), path.stat()
    times = status.st_atime_ns, status.st_mtime_ns
    damaged = bytearray(sound)
    damaged[flip.byte] ^= 1 << flip.bit
    path.write_bytes(bytes(damaged))
    os.utime(path, ns=times)
    try:
        yield
    finally:
        path.write_bytes(sound)
        os.utime(path, ns=times)


def is_found(path: Path) -> bool:
    """Whether verify lists damage; an error instead of a list does not count."""
    try:
        return reshard.verify(path, max_memory="64MiB", workers=2).differences > 0
    except Exception:  # noqa: BLE001  any error means that it told nothing
        return False


def _convert(specimen: Specimen, scratch: Path) -> Outcome:
    out = scratch / "out"
    try:
        reshard.convert(specimen.path, out, **CONVERT)
        return "right" if content(out) == _expected(specimen, scratch)[0] else "silent"
    except reshard.ReshardError:
        return "refused"
    except Exception:  # noqa: BLE001  what the trial is there to find
        return "crashed"
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _restore(specimen: Specimen, scratch: Path) -> Outcome:
    try:
        found = restored(specimen.path)
    except reshard.ReshardError:
        return "refused"
    except Exception:  # noqa: BLE001  what the trial is there to find
        return "crashed"
    return "right" if found == _expected(specimen, scratch)[1] else "silent"


@cache
def _expected(specimen: Specimen, scratch: Path) -> tuple[dict[str, bytes], list[Any]]:
    """What convert and restore give of the undamaged checkpoint."""
    out = scratch / "expected"
    reshard.convert(specimen.path, out, **CONVERT)
    try:
        return content(out), restored(specimen.path)
    finally:
        shutil.rmtree(out)


def content(root: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def restored(path: Path) -> list[Any]:
    """A restored tree in a form that can be compared: names, types and bytes."""
    import jax
    import numpy as np

    tree = reshard.restore(path, max_memory="64MiB", workers=2)
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(str(keys), *_bits(leaf, jax, np)) for keys, leaf in leaves]


def _bits(leaf: Any, jax: Any, np: Any) -> tuple[str, str, bytes]:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return str(leaf.dtype), "", np.asarray(jax.random.key_data(leaf)).tobytes()
    array = np.asarray(leaf)
    return type(leaf).__name__ + str(array.dtype), str(array.shape), array.tobytes()
