"""Made: how reshard made a checkpoint of another, as slices.json records it.

The rules are kept as they were asked for, for people to read. What they did is kept beside them, tensor
by tensor, so that nobody need apply patterns that come from a file: one made to do harm would never end.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from reshard.layout.changes import Changes


class Origin(Struct, frozen=True):
    """The source's tensor that one was made of, where its name or its dtype is another.

    Attributes:
        dtype: the source's, where it was cast; None where every bit was kept.
        saturate: whether that cast made values beyond the largest finite one that one.
    """

    name: str
    dtype: str | None = None
    saturate: bool = False


class Made(Struct, frozen=True):
    """How a checkpoint was made of another.

    Attributes:
        source: digest of the source's tree, 32 hex digits (``engine.pairing.tree_digest``).
        tensors: how many were made.
        changes: the rules, as they were asked for.
        origins: of tensors whose name or dtype changed, by the name that they have now.
    """

    source: str
    tensors: int
    changes: Changes = field(default_factory=Changes)
    origins: Mapping[str, Origin] = field(default_factory=dict)
