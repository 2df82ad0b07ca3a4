"""safetensors in the registry."""

from __future__ import annotations

from functools import partial
from typing import cast

from reshard.formats.base import Reader
from reshard.formats.known_format import KnownFormat
from reshard.formats.safetensors.files import index_files, is_whole
from reshard.formats.safetensors.folder import folders_to_record, is_replaceable
from reshard.formats.safetensors.form import named_options, safetensors_form
from reshard.formats.safetensors.options import OPTIONS
from reshard.formats.safetensors.reader import (
    FORMAT,
    OPENED_TENSOR_BYTES,
    SafetensorsReader,
    is_safetensors_checkpoint,
    leaf_count,
    open_safetensors,
)
from reshard.formats.steps import committed
from reshard.storage.location import Location


def _is_no_run(root: Location) -> bool:
    """A run's folder may also hold a safetensors file, beside its checkpoints."""
    if not is_safetensors_checkpoint(root):
        return False
    return not (root.is_folder() and any(committed(root)))


def _is_finished(root: Location) -> bool:
    """Whether all files of a folder are there."""
    return not root.is_folder() or is_whole(root)


def _takes_record(reader: Reader) -> bool:
    """A file by itself has no room for one."""
    return cast("SafetensorsReader", reader).is_folder


SAFETENSORS = KnownFormat(
    name=FORMAT,
    title="safetensors",
    marks="safetensors (*.safetensors)",
    matches=is_safetensors_checkpoint,
    open=open_safetensors,
    count_leaves=leaf_count,
    leaf_bytes=OPENED_TENSOR_BYTES,
    is_ours=is_replaceable,
    is_no_run=_is_no_run,
    takes_record=_takes_record,
    folders_to_record=folders_to_record,
    open_all=partial(open_safetensors, unlisted="include"),
    files_of=index_files,
    is_finished=_is_finished,
    options=OPTIONS,
    form=safetensors_form,
    named_options=named_options,
    tensors_only=True,
)
