"""Made: from which source and by which rules reshard made a checkpoint, as slices.json records it.

The rules are recorded as written, for people to read. Their result is recorded too, tensor by tensor, so that no
program applies patterns from a file: a hostile pattern might never end.
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
    """The source and the rules of a checkpoint.

    Attributes:
        source: digest of the source's tree, 32 hex digits (``engine.pairing.tree_digest``).
        tensors: the number of tensors that were made.
        changes: the rules, as written.
        origins: the origins of tensors whose name or dtype changed, by their new name.
    """

    source: str
    tensors: int
    changes: Changes = field(default_factory=Changes)
    origins: Mapping[str, Origin] = field(default_factory=dict)
