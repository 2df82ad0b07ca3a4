"""The options of a safetensors target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from reshard.options import OUTPUT, Command, Field, Member, Option

FilesOf = Literal["one", "shards", "ranks", "dcp"]
"""The files of a safetensors target: one file, Hugging Face shards with an index, a file for each device, or
the files of torch's distributed checkpoint, which hold each slice once."""


def _pattern(value: Any) -> str | None:
    # The parser knows the names of models, whose files take their time to import; help needs none of that.
    from reshard.formats.safetensors.write.file_names import parse_pattern

    return parse_pattern(value)


OPTIONS: Mapping[str, Option] = {
    "files": Option(
        kind="choice",
        group=OUTPUT,
        choices=(None, *get_args(FilesOf)),
        show=str,
        command=Command(
            "Files of a safetensors DST. shards, the default: whole tensors and an index, as on Hugging Face; one: a "
            "single file; ranks: a file for each device of the mesh, with its slices; dcp: each slice once, for "
            "torch's distributed checkpoint."
        ),
        member=Member("Files of a safetensors target; shards where it is a folder."),
        field=Field(
            "Files",
            "How a safetensors target is cut into files.",
            choices=(
                "shards, or one by the target's name",
                "one file",
                "shards with an index",
                "a file for each device",
                "torch's distributed checkpoint",
            ),
        ),
    ),
    "file_bytes": Option(
        kind="size",
        group=OUTPUT,
        example="5GB",
        show=str,
        command=Command(
            "Most bytes of tensors in one of --files shards; a tensor is never split. Default: 5GB.",
            "SIZE",
        ),
        field=Field("Shard size", "Most bytes in one shard. Such as 5GB."),
    ),
    "file_names": Option(
        kind="text",
        group=OUTPUT,
        read=_pattern,
        show=str,
        command=Command(
            "Names of the files, such as 'part-{number}.safetensors'. {number} counts from 1, {rank} from 0; {count} "
            "is how many there are.",
            "PATTERN",
        ),
        member=Member(examples=("part-{number:03d}.safetensors",), max_length=200),
        field=Field("File names", "Such as part-{number:03d}.safetensors."),
    ),
    "carry": Option(
        kind="flag",
        group=OUTPUT,
        show=str,
        command=Command(
            "Copy the files beside the weights of a safetensors SRC, such as config.json, as they are, and folders of at most "
            "64 MiB; a warning names larger ones."
        ),
        member=Member(
            "Copy the files beside the weights of a safetensors source, and folders of at most 64 MiB."
        ),
        field=Field("Copy the files beside the weights of a safetensors source"),
    ),
}
