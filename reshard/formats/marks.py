"""The marks of formats: the names that tell checkpoints, in one table, for which no format's own module is needed.

A mark is looked for in one listing of a place. Only a format whose mark is there is asked, and says more (``Format.recognise``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reshard.formats.format import PlaceNames

TREE_METADATA = "_METADATA"
"""Lists the leaves of a tree of Orbax."""

CHECKPOINT_METADATA = "_CHECKPOINT_METADATA"
V1_MARKER = "orbax.checkpoint"
ORBAX_MARKERS = (TREE_METADATA, CHECKPOINT_METADATA, V1_MARKER)

AGGREGATE = "checkpoint"
"""The tree of an item by old versions of Orbax, or the folder of its only array."""

SAFETENSORS_ENDING = ".safetensors"
_SAFETENSORS_INDEX = re.compile(r".*\.safetensors\.index(\.[^.]+)?\.json", re.DOTALL)

DCP_METADATA = ".metadata"
"""Of a distributed checkpoint of torch that all ranks saved together."""

DCP_ENDING = ".distcp"
RANK_METADATA = re.compile(r"__([0-9]{1,9})\.metadata")
"""The same of a rank that saved by itself."""

MEGATRON_CONFIG = "metadata.json"

STATE_ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".pt.tar", ".pth.tar")
"""Of files of ``torch.save``; other files are not looked into."""

STATE_MODELS = ("pytorch_model.bin", "diffusion_pytorch_model.bin", "adapter_model.bin")
"""The file of a model in a folder, as transformers, diffusers and PEFT name it."""

STATE_SHARD = re.compile(r"(.+)-[0-9]{1,9}-of-[0-9]{1,9}(\.[^.]+)?\.bin", re.DOTALL)
_STATE_INDEX = re.compile(r".+\.bin\.index(\.[^.]+)?\.json", re.DOTALL)


TENSORFLOW_INDEX = ".index"


def is_index(name: str) -> bool:
    """True if a file of that name is an index of safetensors files."""
    return _SAFETENSORS_INDEX.fullmatch(name) is not None


def is_weights(name: str) -> bool:
    """True if a file of that name holds tensors as safetensors, or is an index of such files."""
    return name.endswith(SAFETENSORS_ENDING) or is_index(name)


def is_bin_index(name: str) -> bool:
    """True if a file of that name is an index of files of ``torch.save``."""
    return _STATE_INDEX.fullmatch(name) is not None


def is_bin_model(name: str) -> bool:
    """True if a file of that name in a folder is a model of ``torch.save``, or its index."""
    return name in STATE_MODELS or is_bin_index(name)


def is_of_dcp(name: str) -> bool:
    """True if a file of that name is of a distributed checkpoint of torch."""
    return (
        name == DCP_METADATA
        or name.endswith(DCP_ENDING)
        or RANK_METADATA.fullmatch(name) is not None
    )


def _orbax(names: PlaceNames) -> bool:
    return names.has_tree or any(
        entry.is_folder or entry.name in ORBAX_MARKERS or entry.name == AGGREGATE
        for entry in names.entries
    )


def _safetensors(names: PlaceNames) -> bool:
    # A file counts by its first bytes, too.
    return names.kind == "file" or any(is_weights(entry.name) for entry in names.entries)


def _torch_dist(names: PlaceNames) -> bool:
    return MEGATRON_CONFIG in names.files and any(map(is_of_dcp, names.files))


def _dcp(names: PlaceNames) -> bool:
    return any(map(is_of_dcp, names.files)) or (names.kind == "file" and is_of_dcp(names.name))


def _keras(names: PlaceNames) -> bool:
    return names.kind == "file"


def _torch(names: PlaceNames) -> bool:
    if names.kind == "file":
        return is_bin_index(names.name) or names.name.endswith(STATE_ENDINGS)
    return any(is_bin_model(name) or STATE_SHARD.fullmatch(name) for name in names.files)


def is_bundle(names: PlaceNames) -> bool:
    """True for a prefix beside whose place is an index of TensorFlow, and that is the name of nothing."""
    # The index first: where there is none, as beside most targets, the place itself is not looked at.
    index = names.index if names.name else None
    return index is not None and index.kind == "file" and names.kind is None


MARKS: Mapping[str, Callable[[PlaceNames], bool]] = {
    "orbax": _orbax,
    "safetensors": _safetensors,
    "torch_dist": _torch_dist,
    "dcp": _dcp,
    "keras": _keras,
    "torch": _torch,
    "tensorflow": is_bundle,
}
"""The test for the marks of each format of this distribution, in the order in which they are asked: Megatron's additions tell its
checkpoints from others of torch."""
