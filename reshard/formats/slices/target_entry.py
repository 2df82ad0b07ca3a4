"""The entry of slices.json for a tensor that is to be written, whatever its format."""

from __future__ import annotations

from typing import Any

from reshard.formats.base import TargetTensor
from reshard.formats.slices.slice_file import SliceEntry, split_of


def target_entry(
    path: tuple[str, ...],
    target: TargetTensor,
    digest: str | None,
    *,
    memory_kind: str | None = None,
    positions: tuple[int, ...] = (),
) -> SliceEntry:
    """The entry of ``target``, whose keys are ``path``, of which ``positions`` are those of lists."""
    spec = target.spec
    is_meshed = spec.layout is not None and spec.layout.device_mesh is not None
    return SliceEntry(
        path=path,
        dtype=spec.dtype,
        shape=spec.shape,
        layout=spec.layout if is_meshed else None,
        **split_of_shards(target),
        partition=dict(target.partition) if target.partition else None,
        memory_kind=memory_kind,
        digest=digest,
        positions=positions,
    )


def split_of_shards(target: TargetTensor) -> dict[str, Any]:
    """How the slices of the shards are recorded.

    Raises LayoutError where the tensor has fewer rows than its partition has shards.
    """
    shards = target.shards
    return {"slices": shards} if isinstance(shards, tuple) else split_of(shards)
