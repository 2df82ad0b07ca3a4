"""Weights of Keras as a format: ``.weights.h5`` files of Keras 3, without Keras; other HDF5 files of plain arrays are only read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from reshard.formats.base import Form, Reader, TargetCheckpoint, TargetTensor, Unarranged
from reshard.formats.format import About, Format, Mark, OneFile, refuse_surrogates
from reshard.formats.keras.datasets import OPAQUE, PLAIN
from reshard.formats.keras.files import ENDING, HDF5_ENDINGS, ONLY_FILE, is_hdf5, is_keras, is_shard
from reshard.formats.keras.reader import FORMAT, OPENED_TENSOR_BYTES, leaf_count, open_keras
from reshard.formats.loose_pieces import in_shared_files, refuse_dtype
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
        from reshard.formats.keras.write_file import plan_files

        refuse_surrogates("Keras", target)
        return plan_files(target)


_MARK = Mark(
    leaves=leaf_count,
    # Files that Keras saved are replaced too.
    is_ours=lambda root: root.name.endswith(ENDING) and is_hdf5(root),
)


KERAS = Format(
    about=About(
        name=FORMAT,
        title="Keras",
        marks=f"Keras (*{ENDING})",
        leaf_bytes=OPENED_TENSOR_BYTES,
        tensors_only=True,
        one_file=OneFile(ENDING),
        may_be_file=lambda name: name.endswith(HDF5_ENDINGS) and not is_shard(name),
    ),
    recognise=lambda names: _MARK if is_keras(names.root) else None,
    open=lambda root, how: open_keras(root, how.record, how.uri),
    write=lambda _, __: KerasForm(),
)
