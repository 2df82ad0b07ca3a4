"""The options of targets, as formats declare them: FILES of those whose tensors share files, and those of Orbax and safetensors.

They load no format, since help shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from reshard.formats.chunking import SPLIT_ABOVE_BYTES, object_chunk_bytes
from reshard.formats.contents import CODECS_TO_GIVE, Style, codec_name, parse_compression
from reshard.geometry.sizes import exact_bytes
from reshard.options import Option

if TYPE_CHECKING:
    from reshard.formats.contents import Encoding


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


def _compression_text(encoding: Encoding | None) -> str:
    return "keep" if encoding is None else codec_name(encoding) + encoding.spec


ORBAX_OPTIONS: Mapping[str, Option] = {
    "compression": Option(
        kind="text",
        read=parse_compression,
        show=_compression_text,
        metavar="CODEC",
        help=(
            CODECS_TO_GIVE.replace("[", r"\[")
            + ", or keep (each tensor's own). none is the fastest to write and to restore."
        ),
        examples=("zstd:3",),
        max_length=32,
        label="Compression",
        hint=f"{CODECS_TO_GIVE} or keep.",
        offered=("none", "zstd:3", "zstd:9", "gzip:6", "blosc", "keep"),
    ),
    "chunk_bytes": Option(
        kind="size",
        example="256MiB",
        default_bytes=SPLIT_ABOVE_BYTES,
        show=exact_bytes,
        in_bucket=object_chunk_bytes,
        metavar="SIZE",
        help=(
            "Store a shard in several chunks if it is larger than this. Default: 256MiB. Shards below 1MiB share a chunk, "
            "and any other is one chunk; the layout stays as asked."
        ),
        label="Chunk size",
        hint="Larger chunks are split. Such as 64MiB.",
    ),
    "ocdbt": Option(
        kind="flag",
        show=str,
        help="Pack the chunks into one OCDBT database instead of plain files.",
        label="Pack the target into one OCDBT database",
    ),
    "style": Option(
        kind="choice",
        choices=(None, *get_args(Style)),
        show=str,
        help="Orbax's form of checkpoint. Default: the source's.",
        label="Orbax checkpoint style",
        hint="Which Orbax API writes such files.",
        labels=("as the source", "v0", "v1"),
    ),
}


def _pattern(value: Any) -> str | None:
    # The parser knows the names of models, whose files take their time to import; help needs none of that.
    from reshard.formats.safetensors.files import parse_pattern

    return parse_pattern(value)


SAFETENSORS_OPTIONS: Mapping[str, Option] = {
    **FILES,
    "file_names": Option(
        kind="text",
        read=_pattern,
        show=str,
        metavar="PATTERN",
        help=(
            "Names of the files, such as 'part-{number}.safetensors'. {number} counts from 1, {rank} from 0; {count} is how "
            "many there are."
        ),
        examples=("part-{number:03d}.safetensors",),
        max_length=200,
        label="File names",
        hint="Such as part-{number:03d}.safetensors.",
    ),
    "carry": Option(
        kind="flag",
        show=str,
        help=(
            "Copy the files beside the weights of a safetensors SRC, such as config.json, as they are, and folders of at "
            "most 64 MiB; a warning names larger ones."
        ),
        description="Copy the files beside the weights of a safetensors source, and folders of at most 64 MiB.",
        label="Copy the files beside the weights of a safetensors source",
    ),
    "config": Option(
        kind="place",
        show=str,
        metavar="DIR",
        help=(
            "Folder of a model from which config.json, its tokenizer and the other small files at its top are copied. The config is "
            "held against the names and shapes of DST first."
        ),
        description="Folder from which config.json, the tokenizer and other small files are copied, after the config was held against the target.",
        examples=("models/llama",),
        max_length=4096,
        label="Model files",
        hint="A folder with config.json and a tokenizer. They are copied, and the config is held against the target.",
    ),
}
