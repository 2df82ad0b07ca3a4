"""safetensors in the registry."""

from __future__ import annotations

from pathlib import Path

from reshard.formats.known_format import KnownFormat
from reshard.formats.safetensors.folders_to_record import folders_to_record, takes_record
from reshard.formats.safetensors.form import OPTIONS, named_options, safetensors_form
from reshard.formats.safetensors.reader import (
    FORMAT,
    OPENED_TENSOR_BYTES,
    is_safetensors_checkpoint,
    leaf_count,
    open_safetensors,
)
from reshard.formats.safetensors.replaceable import is_replaceable
from reshard.formats.steps import committed


def _is_no_run(path: str) -> bool:
    """A run's folder may also hold a safetensors file, beside its checkpoints."""
    has_checkpoints = Path(path).is_dir() and any(committed(path))
    return is_safetensors_checkpoint(path) and not has_checkpoints


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
