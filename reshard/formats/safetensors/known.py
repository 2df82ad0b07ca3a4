"""safetensors in the registry."""

from __future__ import annotations

from reshard.formats.known_format import KnownFormat
from reshard.formats.safetensors.folder import folders_to_record, is_replaceable, takes_record
from reshard.formats.safetensors.form import OPTIONS, named_options, safetensors_form
from reshard.formats.safetensors.reader import (
    FORMAT,
    OPENED_TENSOR_BYTES,
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
    takes_record=takes_record,
    folders_to_record=folders_to_record,
    options=OPTIONS,
    form=safetensors_form,
    named_options=named_options,
)
