"""The form of a Keras target: one file, in which every tensor is whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from reshard.formats.base import Form, Reader, TargetCheckpoint, TargetTensor, Unarranged
from reshard.formats.format import refuse_surrogates
from reshard.formats.keras.dtypes import OPAQUE, PLAIN
from reshard.formats.keras.files import ONLY_FILE
from reshard.formats.keras.reader import FORMAT
from reshard.formats.slice_places import in_shared_files, refuse_dtype
from reshard.geometry.grid import Grid

if TYPE_CHECKING:
    from reshard.formats.file_map import FileMap

_VARIABLE = re.compile(r"(?:.*/)?vars/[^/]+", re.DOTALL)
"""The form of the names that Keras finds: position or name of a variable below ``vars`` of its layer."""

DTYPES = tuple(sorted(frozenset(PLAIN) | OPAQUE))


class KerasForm(Form, frozen=True):
    """A Keras target: a ``.weights.h5`` file."""

    format: ClassVar[str] = FORMAT

    @property
    def file(self) -> str:
        return ONLY_FILE

    def arrange(self, given: Unarranged) -> TargetTensor:
        """The tensor with contiguous parts as chunks, cut where the source is if that is near."""
        refuse_dtype(given.tensor, DTYPES, "Keras files")
        return in_shared_files(given.tensor, given.source, Grid.whole(given.tensor.spec.shape))

    def warnings(self, target: TargetCheckpoint, _source: Reader, /) -> Iterator[str]:
        """Warnings about tensors that Keras will not find: it silently ignores names that it does not look for."""
        unknown = [name for name in target.tensors if not _VARIABLE.fullmatch(name)]
        if unknown:
            more = f" and {len(unknown) - 1:,} more" if unknown[1:] else ""
            yield (
                f"{unknown[0]!r}{more}: load_weights of Keras finds variables by names such as 'layers/dense/vars/0', and silently ignores all "
                "others; give the tensors such names (map, rename)"
            )

    def plan(self, target: TargetCheckpoint) -> FileMap:
        from reshard.formats.keras.write.file_map import plan_files

        refuse_surrogates("Keras", target)
        return plan_files(target)
