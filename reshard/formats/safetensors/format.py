"""safetensors as a format: single files, shards with an index, and slices over files."""

from __future__ import annotations

from msgspec.structs import replace

from reshard.errors import ReshardError
from reshard.formats.format import About, Format, Mark, OneFile, PlaceNames
from reshard.formats.record_names import OF_RECORDS
from reshard.formats.safetensors.files import is_whole
from reshard.formats.safetensors.form import safetensors_form
from reshard.formats.safetensors.header import is_safetensors
from reshard.formats.safetensors.model_name import ENDING, is_index, is_shard, is_weights
from reshard.formats.safetensors.options import OPTIONS
from reshard.formats.safetensors.reader import (
    FORMAT,
    OPENED_TENSOR_BYTES,
    leaf_count,
    open_safetensors,
)
from reshard.formats.slices.file_digests import files_below
from reshard.formats.slices.parse import read_slices
from reshard.storage.commit_markers import COMMIT_MARKER
from reshard.storage.location import Location


def _is_replaceable(root: Location) -> bool:
    """True for a safetensors file, and for a folder with nothing but files of this project.

    A folder from elsewhere may hold a tokenizer, a config.json or training code, which must not be lost.
    """
    if not root.is_folder():
        return is_safetensors(root)
    try:
        record = read_slices(root)
        if record is None:
            return False
        known = frozenset({*OF_RECORDS, COMMIT_MARKER, *record.files})
        return all(n in known or ("/" not in n and is_weights(n)) for n in files_below(root))
    except ReshardError:
        return False


_FILE = Mark(leaves=leaf_count, is_ours=_is_replaceable)
# A run's folder may also hold a safetensors file, beside its checkpoints.
_FOLDER = replace(_FILE, is_finished=is_whole, runs="with steps")


def _recognise(names: PlaceNames) -> Mark | None:
    """The mark of a safetensors file, of an index of such files, and of a folder that holds some at its top.

    A file counts by its ending or by its first bytes. So a damaged file with the ending gets the error of its header,
    not one about unknown formats.
    """
    if names.kind != "file":
        return _FOLDER if any(is_weights(entry.name) for entry in names.entries) else None
    if not is_index(names.name):
        return _FILE if is_weights(names.name) or is_safetensors(names.root) else None
    folder = names.root.parent
    beside = (folder / name for name in names.beside if name.endswith(ENDING))
    return replace(_FILE, files=(names.root, *beside), is_finished=lambda _: is_whole(folder))


SAFETENSORS = Format(
    about=About(
        name=FORMAT,
        title="safetensors",
        marks="safetensors (*.safetensors)",
        leaf_bytes=OPENED_TENSOR_BYTES,
        options=OPTIONS,
        tensors_only=True,
        is_flat=True,
        one_file=OneFile(ENDING, "files", "one"),
        may_be_file=lambda name: is_weights(name) and not is_shard(name),
        is_index=is_index,
    ),
    recognise=_recognise,
    open=lambda root, how: open_safetensors(root, how.record, how.uri, how.unlisted),
    write=safetensors_form,
)
