"""Made: the source and the rules of which reshard made a checkpoint, as slices.json records them.

The rules are recorded as written, for people to read. Their result is recorded too, tensor by tensor, so that no
program applies patterns from a file: a hostile pattern might never end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from reshard.layout.changes import Changes


class Origin(Struct, frozen=True):
    """The source tensor of a tensor whose name or dtype changed.

    Attributes:
        dtype: the source's dtype, if the tensor was cast; None if every bit was kept.
        saturate: whether that cast clipped values to the largest finite one.
    """

    name: str
    dtype: str | None = None
    saturate: bool = False


class Made(Struct, frozen=True):
    """The source and the rules of a checkpoint.

    Attributes:
        source: digest of the source's tree, 32 hex digits (``planning.pairing.tree_digest``).
        tensors: the number of tensors that were made.
        changes: the rules, as written.
        origins: the origins of tensors whose name or dtype changed, by their new name.
        leaves: the names in the source of the leaves that are not tensors, by their new name; None if they are not
            recorded, as in older files.
        by: the map that made them, as ``GivenMap.plain`` has it; None for tensors that were moved one by one, which alone have
            origins.
    """

    source: str
    tensors: int
    changes: Changes = field(default_factory=Changes)
    origins: Mapping[str, Origin] = field(default_factory=dict)
    leaves: Mapping[str, str] | None = None
    by: Mapping[str, Any] | None = None
