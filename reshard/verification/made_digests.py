"""The digests of tensors that a map makes, without writing them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from reshard.engine.limits import Limits
from reshard.engine.progress import Progress, Stage
from reshard.formats.base import Reader
from reshard.geometry.grid import Grid
from reshard.maps.make import in_parts, make_tensors
from reshard.maps.mapped import Mapped, MappedTensor


class MadeDigests(Struct, frozen=True):
    """Digests of what a map makes, and of what it is made of, 16 hex digits.

    Attributes:
        sources: of the tensors that are taken whole and once, by name.
    """

    made: Mapping[str, str]
    sources: Mapping[str, str]


def made_digests(
    reader: Reader,
    mapping: Mapped,
    limits: Limits,
    progress: Callable[[Progress], None] | None = None,
    stage: Stage = "reading",
) -> MadeDigests:
    """Reads the source once, as far as the memory allows, and takes the digest of each tensor that the map makes.

    Raises the errors of ``make_tensors``.
    """
    tensors = [_in_chunks(made) for made in mapping.tensors]
    books = make_tensors(reader, tensors, limits, progress=progress, stage=stage).books
    found = zip([made.spec.name for made in tensors], books.results(), strict=True)
    return MadeDigests(
        {name: result.target_digest or "" for name, result in found},
        {name: digest for (_, name), digest in books.source_digests().items()},
    )


def _in_chunks(made: MappedTensor) -> MappedTensor:
    return replace(made, spec=in_parts(made.spec, Grid.whole(made.spec.shape)))
