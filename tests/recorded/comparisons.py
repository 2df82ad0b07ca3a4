"""Checkpoints that are compared, with another or with their own records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import reshard
from tests.recorded.restores import TURNED
from tests.recorded.ways import LIMITS, Recorded, Use, World, observed


def _verified(a: str, b: str | None = None, **options: Any) -> Use:
    """By ``verify``; deltas are sources, too."""

    def carried_out(world: World) -> Recorded:
        one, other = world.source(a), None if b is None else world.source(b)
        how = {**LIMITS, **options}
        if "deltas" in how:
            how["deltas"] = [world.source(name) for name in how["deltas"]]
        return observed(world, lambda: reshard.verify(one, other, **how), world.said)

    return carried_out


def _compared(a: str, b: str, **options: Any) -> Use:
    """By ``diff``."""

    def carried_out(world: World) -> Recorded:
        one, other = world.source(a), world.source(b)
        return observed(
            world, lambda: reshard.diff(one, other, **{**LIMITS, **options}), world.said
        )

    return carried_out


_FORMS = ("zarr2", "ocdbt3", "chunks", "blosc", "hf", "ranks", "dcp")

COMPARISONS: Mapping[str, Use] = {
    **{f"verify: equal, {source}": _verified("raw", source) for source in _FORMS},
    "verify: one element": _verified("zarr3", "flipped"),
    "verify: casts": _verified("raw", "halves"),
    "verify: another dtype": _verified("raw", "halves", select=["."]),
    "verify: a dropped tensor": _verified("raw", "fewer"),
    "verify: a missing tensor": _verified("zarr2", "fewer", drop=["both"]),
    "verify: a map": _verified("raw", "zarr2", map=TURNED),
    "verify: missing chunks": _verified("incomplete", "raw", missing_chunks="allow"),
    "verify: in S3": _verified("s3:zarr2", "zstd"),
    "verify: in little memory": _verified("gzip", "raw", max_memory="5MiB"),
    "verify: one alone": _verified("saved"),
    "verify: no record": _verified("zarr2"),
    "verify: damage": _verified("damaged"),
    "verify: damage of zstd": _verified("broken"),
    "verify: damage of one of two": _verified("broken", "raw"),
    "verify: dequantised": _verified("codes", dequantize="bfloat16"),
    "verify: deltas": _verified("base", deltas=["weight_v000001"]),
    "verify: deltas and a step": _verified("base", "latest", deltas=["weight_v000001", "weight_v000002"]),
    "verify: refused, little memory": _verified("gzip", "raw", max_memory="10KiB"),
    "verify: refused, rules without another": _verified("raw", drop=["rows"]),
    "verify: refused, a pattern": _verified("raw", "zarr2", select=["nothing"]),
    "diff: equal": _compared("raw", "zarr2"),
    "diff: another layout": _compared("dcp", "zstd"),
    "diff: one element": _compared("zarr3", "flipped"),
    "diff: steps": _compared("base", "latest"),
    "diff: another dtype": _compared("ocdbt2", "halves"),
    "diff: a missing tensor": _compared("raw", "fewer", drop=["cols"]),
    "diff: every dtype": _compared("dtypes", "dtypes"),
    "diff: in little memory": _compared("gzip", "later", max_memory="11MiB"),
    "diff: from GCS": _compared("gs:zstd", "raw"),
    "diff: refused, little memory": _compared("gzip", "raw", max_memory="10KiB"),
    "diff: refused, damage": _compared("broken", "raw"),
    "diff: refused, a pattern": _compared("raw", "zarr2", select=["nothing"]),
}  # fmt: skip
