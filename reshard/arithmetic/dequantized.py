"""dequantized_text: the dequantised weights of an open checkpoint, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from reshard.arithmetic.dequantize import dequantized
from reshard.formats.base import Reader
from reshard.formats.computed import ComputedChunks
from reshard.formats.contents import StoredTensor
from reshard.geometry.sizes import format_bytes


def dequantized_text(reader: Reader) -> str:
    """The kinds of codes, how many weights are exact, and the bytes of the checkpoint before and after."""
    found = dequantized(reader)
    kinds = Counter(scheme for scheme, _ in found.values()).items()
    exact = sum(is_exact for _, is_exact in found.values())
    texts = [f"{kind}: {n:,} weight{'s' * (n > 1)}" for kind, n in kinds]
    stored, chunks = reader.tensors, reader.chunks
    while isinstance(chunks, ComputedChunks):
        stored, chunks = chunks.base.tensors, chunks.base.chunks
    return (
        f"{'; '.join(texts)}, {format_bytes(_nbytes(stored))} → {format_bytes(_nbytes(reader.tensors))} as {reader.computed['dequantize']}: "
        f"{exact:,} exact, {len(found) - exact:,} rounded"
    )


def _nbytes(tensors: Mapping[str, StoredTensor]) -> int:
    return sum(tensor.spec.nbytes for tensor in tensors.values())
