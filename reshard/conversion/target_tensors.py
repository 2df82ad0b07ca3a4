"""The tensors of a target: their layout, chunks and encoding, and the planner's wanted piece for each of their pieces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from reshard.formats.base import Form, TargetTensor, Unarranged
from reshard.formats.codecs import decoder_bytes, encoded_room, encoder_bytes, is_seekable
from reshard.formats.contents import Leaf, StoredTensor
from reshard.formats.encoding import Encoding, codec_name
from reshard.geometry.grid import Grid
from reshard.layout.tensor_spec import TensorSpec
from reshard.planning.piece import Piece
from reshard.planning.planner import COPY_BYTES, WantedPiece
from reshard.planning.plans import Side
from reshard.planning.target_layouts import Layout, TensorSplit, split
from reshard.storage.base import Traits


def target_tensor(
    stored: StoredTensor, leaf: Leaf, dtype: str, layout: Layout | None, form: Form
) -> TargetTensor:
    """A tensor of the target, of the shape that ``stored`` has, as the format arranges it."""
    source = stored.spec
    bare = TensorSpec(leaf.name, source.shape, dtype, Grid.whole(source.shape))
    parts = split(bare, source, layout)
    partition, slices = _partition(stored, parts)
    whole = replace(bare, layout=parts.layout)
    tensor = TargetTensor(whole, Encoding(), leaf, partition, slices)
    return form.arrange(Unarranged(tensor, stored, parts.slices))


def _partition(
    stored: StoredTensor, parts: TensorSplit
) -> tuple[Mapping[str, Any] | None, Grid | None]:
    """The partition of a tensor, and its slices where the partition does not give them.

    A "mod" table stays one, however it is split now: a program that reads it as "div" would look up the wrong rows.
    """
    recorded = stored.partition or {}
    if recorded.get("strategy") != "mod":
        return parts.partition, None
    given = parts.partition or {}
    partition = recorded
    if given.get("axis") == recorded.get(
        "axis"
    ):  # the recorded partitioner chose another number of shards
        kept = {key: value for key, value in recorded.items() if key != "partitioner"}
        partition = {**kept, "shards": given["shards"]}
    is_split = parts.layout is not None and not given
    return partition, parts.slices if is_split else Grid.whole(stored.spec.shape)


def demand_of(
    piece: Piece, stored: StoredTensor, tensor: TargetTensor, form: Form, traits: Traits
) -> WantedPiece:
    """The planner's wanted piece for a piece of a tensor; ``stored`` is its source."""
    source, target = stored.spec, tensor.spec
    nbytes = target.chunk_bytes
    how = traits.chunk_writing(
        nbytes, is_shared=tensor.packed is not None, database_bytes=form.put_bytes(nbytes)
    )
    return WantedPiece(
        piece,
        Side(
            source,
            codec_name(stored.encoding),
            is_seekable(stored.encoding),
            decoder_bytes(stored.encoding, source.chunk_bytes),
            encoded_room(stored.encoding, source.chunk_bytes),
            is_distant=stored.encoding.read_ahead_bytes > 0,
        ),
        Side(
            target,
            codec_name(tensor.encoding),
            is_seekable(tensor.encoding) and how.takes_ranges,
            encoder_bytes(tensor.encoding, nbytes) + (how.put_bytes or 0),
            copies=tensor.copies,
            in_order=tensor.packed if how.in_order else None,
            ends_with_chunk=how.ends_with_chunk,
        ),
        COPY_BYTES
        + stored.encoding.read_ahead_bytes
        + _whole_chunk_bytes(stored, tensor, how.put_bytes),
    )


def _whole_chunk_bytes(stored: StoredTensor, tensor: TargetTensor, put_bytes: int | None) -> int:
    """Memory to pass on a chunk that is in memory whole: handed to a database, or not stored.

    A chunk of fill values compresses to nothing, and one of zeros takes no memory before that.
    """
    chunk = tensor.spec.chunk_bytes
    encoder = encoder_bytes(tensor.encoding, chunk)
    if put_bytes is not None:
        return encoder + chunk + put_bytes
    if not stored.may_be_missing:
        return 0
    return encoder if any(stored.fill) else max(0, encoder - chunk)
