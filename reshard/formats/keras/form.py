"""The form of a Keras target: one file, in which every tensor is whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from reshard.formats.base import Form, TargetCheckpoint, TargetTensor
from reshard.formats.contents import StoredTensor
from reshard.formats.format import OneFile
from reshard.formats.keras.dtypes import OPAQUE, PLAIN
from reshard.formats.keras.files import ENDING, ONLY_FILE
from reshard.formats.keras.reader import FORMAT
from reshard.formats.slice_places import in_shared_files, refuse_dtype
from reshard.geometry.grid import Grid

ONE_FILE = OneFile(ENDING)

_VARIABLE = re.compile(r"(?:.*/)?vars/[^/]+", re.DOTALL)
"""The form of the names that Keras finds: position or name of a variable below ``vars`` of its layer."""

DTYPES = tuple(sorted(frozenset(PLAIN) | OPAQUE))


class KerasForm(Form, frozen=True):
    """A Keras target: a ``.weights.h5`` file."""

    format: ClassVar[str] = FORMAT

    @property
    def file(self) -> str:
        return ONLY_FILE


def arrange(tensor: TargetTensor, source: StoredTensor) -> TargetTensor:
    """The tensor with contiguous parts as chunks, cut where the source is if that is near."""
    refuse_dtype(tensor, DTYPES, "Keras files")
    return in_shared_files(tensor, source, Grid.whole(tensor.spec.shape))


def warnings(target: TargetCheckpoint) -> Iterator[str]:
    """Warnings about tensors that Keras will not find: it silently ignores names that it does not look for."""
    unknown = [name for name in target.tensors if not _VARIABLE.fullmatch(name)]
    if unknown:
        more = f" and {len(unknown) - 1:,} more" if unknown[1:] else ""
        yield (
            f"{unknown[0]!r}{more}: load_weights of Keras finds variables by names such as 'layers/dense/vars/0', and silently ignores all "
            "others; give the tensors such names (map, rename)"
        )
