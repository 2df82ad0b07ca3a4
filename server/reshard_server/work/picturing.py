"""Picturing: what a page shows of a plan, which may have many thousands of tensors and shards.

Tensors beyond the first are counted only, and shares are told of one tensor, where they are few enough to be
looked at.
"""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from reshard.cli.json_output import conversion_plan

MOST_TENSORS = 200
"""Tensors that are told one by one."""

MOST_PAIRS = 200_000
"""Pairs of a target shard and a source shard whose share is told."""

Planned = Any
"""What ``reshard.api.plan`` returns, and its tensors; their classes are not among the public names."""

Document = dict[str, Any]


def picture(planned: Planned, name: str | None) -> Document:
    """What a page shows of a plan: the first tensors, and one of them with its shares.

    Args:
        name: of the tensor in the target; the largest one where it is None or not there.
    """
    whole = conversion_plan(replace(planned, tensors=planned.tensors[:MOST_TENSORS]), False)
    sizes = [(shard_bytes(t), t.partition is None) for t in planned.tensors]
    chosen = chosen_of(planned.tensors, name)
    return {
        **whole,
        "command": "picture",
        "tensors": [
            {**told, **_shards(t)}
            for told, t in zip(whole["tensors"], planned.tensors, strict=False)
        ],
        "chosen": None if chosen is None else _with_shares(planned, chosen),
        "device_bytes": sum(size for size, over_mesh in sizes if over_mesh),
        "partitioned_bytes": sum(size for size, over_mesh in sizes if not over_mesh),
    }


def chosen_of(tensors: Planned, name: str | None) -> Planned:
    """The tensor with this name, else the largest; None where there is none at all."""
    named = next((t for t in tensors if t.target.name == name), None)
    return named or max(tensors, key=lambda t: t.target.nbytes, default=None)


def shard_bytes(tensor: Planned) -> int:
    """Bytes of the largest shard in the target."""
    spec = tensor.target
    elements = math.prod(spec.shape)
    return spec.nbytes * math.prod(spec.slices.largest) // elements if elements else 0


def _shards(tensor: Planned) -> Document:
    source, target = tensor.source.slices, tensor.target.slices
    return {
        "source_parts": source.parts,
        "target_parts": target.parts,
        "target_shard_shape": target.largest,
        "target_shard_bytes": shard_bytes(tensor),
    }


def _with_shares(planned: Planned, tensor: Planned) -> Document:
    """``shares`` is None where there are too many."""
    few = _pairs(tensor) <= MOST_PAIRS
    (told,) = conversion_plan(replace(planned, tensors=[tensor]), few)["tensors"]
    return {"shares": None, **told, **_shards(tensor)}


def _pairs(tensor: Planned) -> int:
    """At most so many pairs of shards overlap: two grids of s and t parts cut a line into s + t - 1 pieces."""
    both = zip(tensor.source.slices.parts, tensor.target.slices.parts, strict=False)
    return math.prod(s + t - 1 for s, t in both)
