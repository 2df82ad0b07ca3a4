"""Formats that are not read, each with the way from there to one that is; recognised by names and first bytes.

They are tried only if no reader recognises a location. A way names calls that exist: transformers 5.23, torch 2.13,
TensorFlow 2.21, Flax 0.12, T5X and Levanter as of 2026.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing

from msgspec import Struct

from reshard.errors import FormatError
from reshard.storage.location import Location

START_BYTES = 64
"""The first bytes of a file that ``refuse_stand_in`` looks at."""

_POINTER = b"version https://git-lfs.github.com/spec/"
_PAGE = (b"<!doctype html", b"<html", b"<?xml")


def refuse_stand_in(start: bytes, file: str) -> None:
    """Raises FormatError if a file that begins with ``start`` only stands in for a file of a checkpoint.

    ``file`` names it in the message.
    """
    start = start[:START_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith(_POINTER):
        raise FormatError(
            f"{file} is a Git LFS pointer, a small text in place of the file: it was cloned without git-lfs; run 'git lfs install' "
            "and 'git lfs pull' in the clone, or download the file itself"
        )
    if start.startswith(_PAGE):
        raise FormatError(
            f"{file} is a web page (HTML or XML) in place of the file, such as a login page or an error of the server; download "
            "the file again, with access to it"
        )


class Foreign(Struct, frozen=True):
    """A format that is not read.

    Attributes:
        name: its kind, as in "it is …".
        way: the calls that turn it into a checkpoint that is read.
    """

    name: str
    way: str


SAVED_MODEL = Foreign(
    "a SavedModel of TensorFlow",
    "its variables are a checkpoint, which the prefix DIR/variables/variables names",
)
MEGATRON = Foreign(
    "a checkpoint of Megatron in its format torch",
    "load it with Megatron and save it with --ckpt-format torch_dist, which is read",
)
DEEPSPEED = Foreign(
    "a checkpoint of DeepSpeed",
    "'python zero_to_fp32.py . OUTPUT --safe_serialization', in the folder, writes its weights as safetensors",
)
TORCH_CHECKPOINTING = Foreign(
    "a checkpoint of torch_checkpointing (metadata.pkl)",
    "restore it with that library, and write its tensors with safetensors.torch.save_file",
)
PICKLE = Foreign(
    "a pickle",
    "loading one can run any code: where you trust it, load it with torch.load(weights_only=True) and write it with "
    "safetensors.torch.save_file",
)
TORCH_ELSEWHERE = Foreign(
    "an archive of torch.save by its content, but not by its name",
    "give it a name that ends in .pt, which is read",
)
KERAS = Foreign(
    "an archive of Keras (.keras)",
    "'unzip FILE model.weights.h5' takes its weights out, which are read",
)
KERAS_SHARDS = Foreign(
    "the list of weights that Keras saved in several files (.weights.json)",
    "load them into the model with load_weights, and save one file with save_weights('NAME.weights.h5')",
)
GGUF = Foreign(
    "a GGUF file, whose tensors are quantised mostly",
    "take the model that it was made of; or let from_pretrained(DIR, gguf_file=FILE) of transformers dequantise it, and "
    "save_pretrained write it as safetensors",
)
NPZ = Foreign(
    "an archive of numpy (.npz)",
    "safetensors.numpy.save_file(dict(numpy.load(FILE)), 'NAME.safetensors') writes its arrays",
)
NPY = Foreign(
    "an array of numpy (.npy)",
    "safetensors.numpy.save_file({'NAME': numpy.load(FILE)}, 'NAME.safetensors') writes it",
)
MSGPACK = Foreign(
    "a msgpack file, such as Flax writes",
    "flax.serialization.msgpack_restore(DATA) gives its tree of arrays, which reshard.save saves",
)
T5X = Foreign(
    "a checkpoint of T5X",
    "t5x.checkpoints.load_t5x_checkpoint(DIR) gives its tree of arrays, which reshard.save saves",
)
LEVANTER = Foreign(
    "a tree of zarr arrays without Orbax's _METADATA, as Levanter writes it",
    "'python -m levanter.main.export_lm_to_hf' writes the model as Hugging Face safetensors; or read the arrays with TensorStore and save "
    "them with reshard.save",
)
ZARR = Foreign(
    "a tree of zarr arrays without Orbax's _METADATA",
    "restore the file from a copy if it is a checkpoint of Orbax; else read the arrays with TensorStore and save them with reshard.save",
)
OCDBT = Foreign(
    "a database of TensorStore (OCDBT) without Orbax's _METADATA",
    "restore the file from a copy if it is a checkpoint of Orbax; else read the arrays with TensorStore and save them with reshard.save",
)
DIFFUSERS = Foreign(
    "a pipeline of diffusers",
    "its models are in folders, such as transformer, unet, vae or text_encoder: name one of them",
)


_ZIP = b"PK\x03\x04"
_MAP_OF_TEXT = re.compile(rb"(?:[\x81-\x8f]|\xde..|\xdf....)[\xa0-\xbf\xd9-\xdb]", re.DOTALL)
"""A msgpack map whose first key is text."""

_TORCH = re.compile(rb"PK\x03\x04.{26}[^/]{1,80}/data\.pkl", re.DOTALL)
"""An archive whose first record is the one that ``torch.save`` writes first."""

_HEAD_BYTES, _END_BYTES = 128, 16

_FILES: tuple[tuple[str, bytes, Foreign], ...] = (
    (r"saved_model\.pb", b"", SAVED_MODEL),
    (r".*", b"GGUF", GGUF),
    (r".*", b"\x93NUMPY", NPY),
    (r".*\.npz", _ZIP, NPZ),
    (r".*\.keras", _ZIP, KERAS),
    (r".*\.weights\.json", b"{", KERAS_SHARDS),
    (r".*\.(?:pt|pth|bin|ckpt|pkl|pickle)", b"\x80", PICKLE),
)
"""A file by its name and its first bytes."""

_RANK_OF_MEGATRON = r"mp_rank_\d+(?:_\d+)*"

_FOLDERS: tuple[tuple[str, Foreign], ...] = (
    (_RANK_OF_MEGATRON, MEGATRON),
    (r"metadata\.pkl", TORCH_CHECKPOINTING),
    (r"zero_to_fp32\.py|.*_model_states\.pt", DEEPSPEED),
    (r"saved_model\.pb", SAVED_MODEL),
    (r"model_index\.json", DIFFUSERS),
    (r"manifest\.ocdbt", OCDBT),
)
"""A folder by a name in it."""

_HELD: tuple[tuple[str, Foreign], ...] = (
    (r".*\.gguf", GGUF),
    (r".*\.weights\.json", KERAS_SHARDS),
    (r".*\.keras", KERAS),
    (r".*\.msgpack", MSGPACK),
    (r".*\.npz", NPZ),
)
"""A file in a folder by its name."""

_ZARR_NAMES = frozenset({".zarray", ".zgroup", "zarr.json"})
_MOST_LISTED = 16
"""Folders that are listed to find a zarr array: the deepest trees have ten levels."""


def foreign_text(root: Location) -> str:
    """The kind of an unreadable checkpoint at a location, and the way from there; "" if nothing is recognised.

    Raises StorageError where it cannot be looked at.
    """
    if root.is_folder():
        found = _of_folder(root)
        if found is not None:
            return f"it is {_text(found)}"
        held = _held([entry.name for entry in root.entries() if not entry.is_folder])
        return f"it holds {held[0]!r}, which is {_text(held[1])}" if held else ""
    found = _of_file(root)
    return f"it is {_text(found)}" if found is not None else ""


def _text(found: Foreign) -> str:
    return f"{found.name}, which reshard does not read; {found.way}"


def _of_file(file: Location) -> Foreign | None:
    start, _ = _ends(file)
    for name, first, found in _FILES:
        if start.startswith(first) and re.fullmatch(name, file.name, re.DOTALL):
            return found
    if _TORCH.match(start):
        return TORCH_ELSEWHERE
    return MSGPACK if _MAP_OF_TEXT.match(start) else None


def _of_folder(folder: Location) -> Foreign | None:
    entries = folder.entries()
    names = [entry.name for entry in entries]
    for pattern, found in _FOLDERS:
        if _has(names, pattern):
            return found
    if _has(names, r"latest_checkpointed_iteration\.txt") and _has_ranks(folder, names):
        return MEGATRON
    if any(entry.name == "checkpoint" and not entry.is_folder for entry in entries):
        found_in = _of_checkpoint_file(folder / "checkpoint")
        if found_in is not None:
            return found_in
    if not any(_ZARR_NAMES & set(listed) for listed in _listings(folder)):
        return None
    return LEVANTER if "metadata.json" in names else ZARR  # Levanter puts its own file at the top


def _has_ranks(run: Location, names: Iterable[str]) -> bool:
    """True if the steps of a run of Megatron are in its format ``torch``: a step of ``torch_dist`` has no folders of ranks."""
    step = next((name for name in names if re.fullmatch(r"iter_\d+", name)), None)
    return step is not None and _has(
        [entry.name for entry in (run / step).entries()], _RANK_OF_MEGATRON
    )


def _has(names: Iterable[str], pattern: str) -> bool:
    return any(re.fullmatch(pattern, name, re.DOTALL) for name in names)


def _of_checkpoint_file(file: Location) -> Foreign | None:
    """The format of a file that T5X and Orbax before 0.4.2 each write into a folder, as TensorFlow does."""
    start, end = _ends(file)
    if not _MAP_OF_TEXT.match(start):
        return None
    # T5X saves {"version": 3, "optimizer": …}, whose keys Flax sorts.
    is_t5x = start.startswith(b"\x82") and (
        start[1:].startswith(b"\xa7version") or b"\xa7version" in end
    )
    return T5X if is_t5x else MSGPACK


def _held(names: Collection[str]) -> tuple[str, Foreign] | None:
    for pattern, found in _HELD:
        for name in names:
            if re.fullmatch(pattern, name, re.DOTALL):
                return name, found
    return None


def _listings(folder: Location) -> Iterator[list[str]]:
    """The names in the folder and in those below it, depth first; of the first few."""
    waiting = [folder]
    for _ in range(_MOST_LISTED):
        if not waiting:
            return
        place = waiting.pop()
        entries = place.entries()
        yield [entry.name for entry in entries]
        waiting += [
            place / entry.name
            for entry in reversed(entries)
            if entry.is_folder and not entry.is_link
        ]


def _ends(file: Location) -> tuple[bytes, bytes]:
    """The first and the last bytes of a plain file; nothing for anything else."""
    found = file.status()
    if found is None or found.kind != "file":
        return b"", b""
    with closing(file.open()) as opened:
        end = max(0, found.nbytes - _END_BYTES)
        return opened.read(0, _HEAD_BYTES), opened.read(end, _END_BYTES)
