"""The files of a state dict that ``torch.save`` wrote: one by itself, or a model of Hugging Face.

::

    model.pt, model.pth, model.bin, model.ckpt, model.pt.tar
    folder/pytorch_model.bin                   or diffusion_pytorch_model.bin, adapter_model.bin
    folder/pytorch_model.bin.index.json        {"weight_map": {NAME: FILE}}, beside pytorch_model-00001-of-00002.bin, …

An index can be named itself, where its folder has several. A folder counts only where the name says that the file is the model: other
files of ``torch.save`` beside it, such as ``optimizer.pt`` or ``training_args.bin``, are named by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from msgspec import Struct

from reshard.errors import FormatError, MissingError, NotACheckpointError, ReshardError
from reshard.formats.foreign import START_BYTES, refuse_stand_in
from reshard.formats.format import PlaceNames
from reshard.formats.marks import STATE_ENDINGS, STATE_SHARD, is_bin_index, is_bin_model
from reshard.formats.safetensors.model_index import ModelIndex, read_model_index
from reshard.storage.calls import read_part
from reshard.storage.location import Location

ARCHIVE = b"PK\3\4"
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The magic number with which ``torch.save`` began before torch 1.6, as a pickle."""

WINDOW_BYTES = 64 << 10
"""Bytes that are read at once of the beginning and of the end: the pickle or the directory of some hundred tensors."""

_END = b"PK\5\6"
_END_BYTES = 22
_HEADER = b'{"'
"""The beginning of the header of a safetensors file, behind the 8 bytes of its length."""


class StateFiles(Struct, frozen=True):
    """The files of the tensors; ``index`` is None for one file."""

    files: tuple[Location, ...]
    index: ModelIndex | None = None


def is_state(file: Location) -> bool:
    """True for a file that begins as an archive, or as one that is refused by name."""
    start = start_of(file)
    try:
        refuse_stand_in(start, "")
    except FormatError:
        return True
    return start.startswith((ARCHIVE, LEGACY))


def start_of(file: Location) -> bytes:
    """The first bytes of a file; where each read is a request, as many as the pickle of a small model takes."""
    found = file.status(f"the file {file.name!r}")
    if found is None or found.kind != "file":
        return b""
    nbytes = file.read_bytes(START_BYTES, WINDOW_BYTES)
    return read_part(file, found, 0, min(nbytes, found.nbytes))


def is_safetensors_start(start: bytes) -> bool:
    """True if a file begins as safetensors."""
    return start[8:10] == _HEADER


def state_files(root: Location) -> StateFiles:
    """The files of a checkpoint.

    Raises NotACheckpointError where it is not clear which file is the model, MissingError where one of them is missing.
    """
    if not root.is_folder():
        return _indexed(root.parent, root) if is_bin_index(root.name) else StateFiles((root,))
    names = _names(root)
    found = [name for name in names if is_bin_model(name)]
    if not found:
        stem = next(match[1] for name in names if (match := STATE_SHARD.fullmatch(name)))
        raise MissingError(
            f"{root} has files {stem}-…-of-….bin, but no index that says what is in them; expected {stem}.bin.index.json: copy it there"
        )
    if len(found) > 1:
        raise NotACheckpointError(
            f"{root} holds {len(found)} models: {', '.join(found[:4])}; name the one to read, such as {root / found[0]}"
        )
    (name,) = found
    return _indexed(root, root / name) if is_bin_index(name) else StateFiles((root / name,))


def files_beside(names: PlaceNames) -> tuple[Location, ...]:
    """The files that an index stands for: itself and the files beside it; none for any other location."""
    if not (is_bin_index(names.name) and names.kind == "file"):
        return ()
    beside = [name for name in names.beside if name.endswith(".bin")]
    return (names.root, *(names.root.parent / name for name in beside))


def is_whole(root: Location) -> bool:
    """True if all files of a checkpoint are there, each to its end: programs write them in place."""
    try:
        return all(map(_has_end, state_files(root).files))
    except ReshardError:
        return False


def held_text(folder: Location) -> str:
    """A hint for a folder that is not a checkpoint but holds a file of ``torch.save``; "" for any other folder."""
    for name in _names(folder):
        if name.endswith(STATE_ENDINGS) and is_state(folder / name):
            return f"it holds a file of torch.save, so name that: {folder / name}"
    return ""


def _has_end(file: Location) -> bool:
    found = file.status()
    if found is None or found.nbytes < _END_BYTES:
        return False
    with closing(file.open()) as opened:
        return opened.read(found.nbytes - _END_BYTES, len(_END)) == _END


def _indexed(folder: Location, file: Location) -> StateFiles:
    index = read_model_index(file, frozenset(_names(folder)))
    return StateFiles(tuple(folder / name for name in index.files), index)


def _names(folder: Location) -> Sequence[str]:
    return [entry.name for entry in folder.entries() if not entry.is_folder]
