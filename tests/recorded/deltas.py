"""Deltas that are made, listed, and applied: one, a chain, one that a map turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import reshard
from tests.recorded.sources import ROWS
from tests.recorded.ways import LIMITS, ONE_WORKER, Recorded, Use, World, observed

_MAP = {
    "drop": ["both"],
    "map": [
        {"from": "rows", "to": "r.weight", "shape": "i o -> o i"},
        {"from": "cols", "to": "c.weight"},
        {"from": "small", "to": "n"},
    ],
}
_CHAIN = ("weight_v000001", "weight_v000002")


def _made(old: str, new: str, target: str, **options: Any) -> Use:
    """A delta, and what its version says of itself."""

    def carried_out(world: World) -> Recorded:
        before, after, dst = world.source(old), world.source(new), world.target(target)

        def told(report: reshard.DeltaReport) -> Recorded:
            (version,) = reshard.inspect_versions(dst)
            return {
                "report": world.said(report),
                "files": world.files(dst),
                "version": world.said(version),
            }

        how = {**LIMITS, **options}
        return observed(world, lambda: reshard.delta(before, after, dst, **how), told)

    return carried_out


def _applied(base: str, deltas: Sequence[str], target: str, **options: Any) -> Use:
    """Deltas over a full version, as a conversion."""

    def carried_out(world: World) -> Recorded:
        src, dst = world.source(base), world.target(target)
        over = [world.source(name) for name in deltas]
        return observed(
            world,
            lambda: reshard.apply(src, over, dst, **{**LIMITS, **options}),
            lambda report: {"report": world.said(report), "files": world.files(dst)},
        )

    return carried_out


DELTAS: Mapping[str, Use] = {
    "delta": _made("base", "later", "weight_v000001"),
    "delta: between steps": _made("later", "latest", "weight_v000002"),
    "delta: overwrite": _made("base", "latest", "over/weight_v000001", encoding="overwrite"),
    "delta: for ModelExpress": _made("base", "later", "express/v7", receiver="modelexpress", base_version="v6"),
    "delta: mapped and cast": _made("raw", "later", "mapped/weight_v000003", map=_MAP, cast=[["c.weight", "bfloat16"]]),
    "delta: in little memory": _made("base", "latest", "little/weight_v000001", max_memory="8MiB"),
    "delta: no change": _made("zstd", "raw", "same/weight_v000001"),
    "delta: from S3": _made("base", "s3:later", "clouds/weight_v000001"),
    "delta: refused, little memory": _made("base", "later", "refused/weight_v000001", max_memory="10KiB"),
    "delta: refused, another dtype": _made("base", "halves", "refused/weight_v000001"),
    "delta: refused, damage": _made("base", "broken", "refused/weight_v000001"),
    "apply": _applied("base", _CHAIN[:1], "applied"),
    "apply: a chain": _applied("base", _CHAIN, "applied-all", to="orbax", layout=ROWS, compression="zstd"),
    "apply: with changes": _applied("base", _CHAIN, "applied-part.safetensors", drop=["cols"], cast=[["float", "bfloat16"]]),
    "apply: refused, a gap": _applied("base", _CHAIN[1:], "refused-gap", **ONE_WORKER),
    "apply: over one file": _applied("one.safetensors", _CHAIN, "applied-one", drop=["cols"]),
    "apply: refused, another base": _applied("zstd", _CHAIN, "refused-base"),
    "apply: refused, little memory": _applied("base", _CHAIN, "refused-little", max_memory="10KiB"),
}  # fmt: skip
