"""The options of a safetensors target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reshard.formats.target_files import FILES
from reshard.options import Option


def _pattern(value: Any) -> str | None:
    # The parser knows the names of models, whose files take their time to import; help needs none of that.
    from reshard.formats.safetensors.model_name import parse_pattern

    return parse_pattern(value)


OPTIONS: Mapping[str, Option] = {
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
