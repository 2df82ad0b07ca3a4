"""Fingerprints, and identities of weights: computed, carried by conversions, and proved."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import reshard
from tests.recorded.sources import COLUMNS, weights
from tests.recorded.ways import LIMITS, Recorded, Use, World, observed, once


def _fingerprinted(source: str, times: int = 1, **options: Any) -> Use:
    """A copy of a source, ``times`` in all."""

    def carried_out(world: World) -> Recorded:
        copy = Path(f"own-{source}")
        if times == 1:
            shutil.copytree(world.source(source), copy)
        return observed(
            world,
            lambda: reshard.fingerprint(copy, **{**LIMITS, **options}),
            lambda found: {**world.said(found), "files": world.files(str(copy))},
        )

    return carried_out


def _identified(source: str, out: str | None = None, **options: Any) -> Use:
    """With the hashes of the trees that its files keep."""

    def carried_out(world: World) -> Recorded:
        src, how = world.source(source), {**LIMITS, **options}
        folder = None if out is None else world.target(out)

        def told(found: reshard.Identification) -> Recorded:
            nodes = {name: hashlib.sha256(kept).hexdigest() for name, kept in found.nodes.items()}
            files = {} if folder is None else world.files(folder)
            return {**world.said(found), "nodes": nodes, "files": files}

        return observed(world, lambda: reshard.identify(src, out=folder, **how), told)

    return carried_out


def _proved(steps: int) -> Use:
    """Live arrays."""

    def carried_out(world: World) -> Recorded:
        src, arrays = world.source("identified"), weights(steps)
        return observed(world, lambda: reshard.prove(arrays, src), world.said)

    return carried_out


def _slice_proved(source: str, name: str, box: str | None) -> Use:
    """A slice of a stored tensor."""

    def carried_out(world: World) -> Recorded:
        src = world.source(source)
        return observed(
            world,
            lambda: reshard.open_checkpoint(src).prove_slice(name, box, max_memory="64MiB"),
            world.said,
        )

    return carried_out


_FORMS = (
    "raw",
    "zstd",
    "ocdbt3",
    "chunks",
    "ranks",
    "dcp",
    "halves",
    "state",
    "dtypes",
    "s3:zarr2",
)

IDENTITIES: Mapping[str, Use] = {
    **{f"identify: {source}": _identified(source) for source in _FORMS},
    "identify: into files": _identified("zarr3", "identity", sha256=True),
    "identify: refused, a missing chunk": _identified("incomplete"),
    "identify: refused, damage": _identified("damaged"),
    "identify: refused, little memory": _identified("zstd", max_memory="10KiB"),
    "identify: refused, no place for SHA-256": _identified("raw", sha256=True),
    "identify: converted and computed": once("zstd", "computed", layout=COLUMNS, identity="compute"),
    "identify: converted and checked": once("identified", "checked", layout=COLUMNS, identity="check"),
    "identify: converted and carried": once("identified", "carried", to="safetensors", identity="carry"),
    "prove": _proved(0),
    "prove: other arrays": _proved(1),
    "prove: a slice": _slice_proved("identified", "rows", "0:256,:"),
    "prove: a slice of a slice": _slice_proved("identified", "cols", "512:1024,0:256"),
    "prove: refused, a slice that cuts tiles": _slice_proved("identified", "rows", "1:2,:"),
    "prove: refused, no identity": _slice_proved("raw", "rows", "0:256,:"),
    "fingerprint": _fingerprinted("raw"),
    "fingerprint: zstd": _fingerprinted("zarr3"),
    "fingerprint: a database": _fingerprinted("ocdbt2"),
    "fingerprint: a state": _fingerprinted("state1"),
    "fingerprint: again": _fingerprinted("raw", 2, overwrite=True),
    "fingerprint: refused, a record": _fingerprinted("raw", 2),
    "fingerprint: refused, little memory": _fingerprinted("zarr2", max_memory="10KiB"),
}  # fmt: skip
