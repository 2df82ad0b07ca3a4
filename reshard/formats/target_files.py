"""The options by which a target is cut into files: FILES, of the formats whose tensors share files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from reshard.options import Option

FilesOf = Literal["one", "shards", "ranks", "dcp"]
"""The files of a target. Of safetensors: one file, Hugging Face shards with an index, a file for each device, or
the files of torch's distributed checkpoint, which hold each slice once. Of TensorFlow: one data file, data files of a size, or a data
file for each shard."""

FILES: Mapping[str, Option] = {
    "files": Option(
        kind="choice",
        choices=(None, *get_args(FilesOf)),
        show=str,
        help=(
            "Files of a safetensors DST. shards, the default: whole tensors and an index, as on Hugging Face; one: a single "
            "file; ranks: a file for each device of the mesh, with its slices; dcp: each slice once, for torch's distributed "
            "checkpoint. Data files of a TensorFlow DST. ranks, the default: one for each shard; shards: of at most --file-bytes; one: a "
            "single one."
        ),
        description=(
            "Files of a safetensors target; shards where it is a folder. Data files of a TensorFlow target: ranks, one for each shard, is the "
            "default; dcp has no meaning there."
        ),
        label="Files",
        hint="How a safetensors or TensorFlow target is cut into files.",
        labels=(
            "by the format, or one by the target's name",
            "one file",
            "shards of a size",
            "a file for each device, or for each shard (TensorFlow)",
            "torch's distributed checkpoint (safetensors)",
        ),
    ),
    "file_bytes": Option(
        kind="size",
        example="5GB",
        show=str,
        metavar="SIZE",
        help=(
            "Most bytes of tensors in one of --files shards; a tensor of safetensors and a slice of TensorFlow is never split. "
            "Default: 5GB. With a TensorFlow DST it means --files shards."
        ),
        label="Shard size",
        hint="Most bytes in one shard. Such as 5GB.",
    ),
}

SHARD_BYTES = 5_000_000_000
"""Most bytes of tensors in one of several shards, as Hugging Face writes them."""
