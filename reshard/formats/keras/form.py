"""The form of a Keras target: one file, in which every tensor is whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from msgspec.structs import replace

from reshard.errors import PlanError
from reshard.formats.base import Form, TargetCheckpoint, TargetTensor
from reshard.formats.chunking import contiguous_grid
from reshard.formats.contents import Encoding, StoredTensor
from reshard.formats.format import OneFile
from reshard.formats.keras.dtypes import OPAQUE, PLAIN
from reshard.formats.keras.files import ENDING, ONLY_FILE
from reshard.geometry.grid import Grid

CHUNK_BYTES = 16 << 20
"""Most bytes of a chunk. It is a unit of work only: readers see whole tensors."""

ONE_FILE = OneFile(ENDING)

_VARIABLE = re.compile(r"(?:.*/)?vars/[^/]+", re.DOTALL)
"""The name of what Keras finds: position or name of a variable below ``vars`` of its layer."""

DTYPES = frozenset(PLAIN) | OPAQUE


class KerasForm(Form, frozen=True):
    """A Keras target: a ``.weights.h5`` file."""

    format: ClassVar[str] = "keras"

    @property
    def file(self) -> str:
        return ONLY_FILE


def arrange(tensor: TargetTensor, source: StoredTensor) -> TargetTensor:
    """The tensor with contiguous parts as chunks, cut where the source is if that is near."""
    spec = tensor.spec
    if spec.dtype not in DTYPES:
        raise PlanError(
            f"{spec.name!r} is {spec.dtype}, which Keras files do not have; drop it, or cast it to one of {', '.join(sorted(DTYPES))}"
        )
    wanted, grid = source.spec.storage, Grid.whole(spec.shape)
    storage = contiguous_grid(
        grid, spec.itemsize, CHUNK_BYTES, wanted if wanted.shape == grid.shape else None
    )
    return replace(tensor, spec=replace(spec, storage=storage), encoding=Encoding(), packed=grid)


def warnings(target: TargetCheckpoint) -> Iterator[str]:
    """Which tensors Keras will not find, since it says nothing of names that it does not look for."""
    unknown = [name for name in target.tensors if not _VARIABLE.fullmatch(name)]
    if unknown:
        more = f" and {len(unknown) - 1:,} more" if unknown[1:] else ""
        yield (
            f"{unknown[0]!r}{more}: load_weights of Keras finds variables by names such as 'layers/dense/vars/0', and ignores all others "
            "without a word; give the tensors such names (map, rename)"
        )
