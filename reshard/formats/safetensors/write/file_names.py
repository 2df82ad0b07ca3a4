"""Names of the files of a safetensors target, made from a pattern.

A pattern has fields in braces, each with an optional width: ``{number}`` counts files from 1, ``{rank}`` from 0, and
``{count}`` is how many there are. ``model-{number:05d}-of-{count:05d}.safetensors`` is Hugging Face's.
"""

from __future__ import annotations

import re
from typing import Any

from reshard.errors import PlanError
from reshard.formats.safetensors.index import ENDING
from reshard.formats.safetensors.model_name import ModelName
from reshard.formats.safetensors.options import FilesOf

ONLY_FILE = f"model{ENDING}"

_USUAL: dict[str, str] = {
    "one": ONLY_FILE,
    "ranks": f"model-rank-{{rank:05d}}-of-{{count:05d}}{ENDING}",
    "dcp": f"shard-{{number:05d}}-model-00001-of-00001{ENDING}",
}

_FIELD = re.compile(r"\{(number|rank|count)(?::0?([1-9])d)?\}")

_EXAMPLE = "such as 'model-{number:05d}-of-{count:05d}.safetensors'"


def parse_pattern(pattern: Any) -> str | None:
    """The pattern, or None for the usual names; PlanError unless it gives names of files of this format."""
    if pattern is None:
        return None
    if not isinstance(pattern, str):
        raise PlanError(f"file_names is {pattern!r}; expected a pattern, {_EXAMPLE}")
    rest = _FIELD.sub("", pattern)
    if "{" in rest or "}" in rest:
        raise PlanError(
            f"file_names is {pattern!r}; expected the fields {{number}}, {{rank}} and {{count}}, each with a width of 1 "
            f"to 9 or none, {_EXAMPLE}"
        )
    is_name = pattern.isprintable() and not any(c in pattern for c in "/\\")
    if not pattern.endswith(ENDING) or not is_name or len(pattern) > 200:
        raise PlanError(
            f"file_names is {pattern[:220]!r}; expected the name of a file that ends in {ENDING}, {_EXAMPLE}"
        )
    return pattern


def file_names(files: FilesOf, count: int, pattern: str | None, name: ModelName) -> list[str]:
    """The name of each of ``count`` files of a model of that name.

    Raises PlanError for a pattern that gives two files the same name.

    >>> file_names("shards", 2, None, ModelName())
    ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors']
    """
    if pattern is None and files == "shards":
        shards = [name.shard(number + 1, count) for number in range(count)]
        return shards if count > 1 else [name.only_file]
    used = pattern or _USUAL[files]
    names = [_name(used, number, count) for number in range(count)]
    if len(set(names)) < count:
        raise PlanError(
            f"file_names is {used!r}, which gives several of the {count} files the same name; add {{number}} or {{rank}}"
        )
    return names


def _name(pattern: str, rank: int, count: int) -> str:
    values = {"number": rank + 1, "rank": rank, "count": count}
    return _FIELD.sub(lambda found: f"{values[found[1]]:0{found[2] or 1}d}", pattern)
