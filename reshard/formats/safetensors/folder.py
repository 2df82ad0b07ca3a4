"""A folder of safetensors files: what a record covers, and whether a target may replace it."""

from __future__ import annotations

from reshard.errors import FormatError, ReshardError
from reshard.formats.base import Reader
from reshard.formats.safetensors.beside import beside
from reshard.formats.safetensors.files import files_of, is_named_index
from reshard.formats.safetensors.header import is_safetensors
from reshard.formats.safetensors.index import is_weights
from reshard.formats.slices.file_digests import files_below
from reshard.formats.slices.parse import read_slices
from reshard.formats.slices.record_files import RecordedFolder, TensorTree
from reshard.formats.slices.slice_file import FILE_NAME
from reshard.storage.commit_markers import COMMIT_MARKER
from reshard.storage.location import Location


def folders_to_record(root: Location, reader: Reader) -> list[RecordedFolder]:
    """The folder, with the index and the files beside the weights; the digests of tensors cover the rest.

    Raises FormatError for a single file or an index.
    """
    if is_named_index(root):
        raise FormatError(
            f"{reader.uri} is an index, and a record of digests belongs to its folder; name the folder {root.parent}"
        )
    if not root.is_folder():
        raise FormatError(
            f"{reader.uri} is a single safetensors file, which has no room for a record of digests; put it into a folder and "
            "record that, or convert it, which records them; a file that reshard wrote has its record in the header"
        )
    names = [*beside(root).files]
    index = files_of(root).index
    if index is not None:
        names.append(index.file.name)
    tree = TensorTree(reader.leaves, reader.tensors)
    return [RecordedFolder("", tree, tuple(names), data_files=None)]


def is_replaceable(root: Location) -> bool:
    """Whether it is a safetensors file, or a folder with nothing but what this project wrote.

    A folder from elsewhere may hold a tokenizer, a config.json or training code, which nobody wants to lose.
    """
    if not root.is_folder():
        return is_safetensors(root)
    try:
        record = read_slices(root)
        if record is None:
            return False
        known = frozenset({FILE_NAME, COMMIT_MARKER, *record.files})
        return all(n in known or ("/" not in n and is_weights(n)) for n in files_below(root))
    except ReshardError:
        return False
