"""The names of the files of a model, by which its loaders find them.

::

    model.safetensors                        one file
    model-00001-of-00002.safetensors         shards, with model.safetensors.index.json
    model.fp16.safetensors                   the variant "fp16"
    model.fp16-00001-of-00002.safetensors    its shards, with model.safetensors.index.fp16.json

These are transformers' names (``_add_variant`` in ``modeling_utils.py``, 5.23). In diffusers ``diffusion_pytorch_model`` is in the
place of ``model``, in PEFT ``adapter_model``. Older diffusers wrote ``model-00001-of-00002.fp16.safetensors``, which is read.

The names of a target are made from a pattern. It has fields in braces, each with an optional width: ``{number}`` counts files
from 1, ``{rank}`` from 0, and ``{count}`` is their number. ``model-{number:05d}-of-{count:05d}.safetensors`` is Hugging
Face's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from reshard.errors import PlanError
from reshard.formats.target_files import FilesOf

ENDING = ".safetensors"
INDEX_NAME = f"model{ENDING}.index.json"


def is_shard(file: str) -> bool:
    """True for the name of one of several files."""
    return _SHARD.fullmatch(file) is not None


def is_skyrl_payload(file: str) -> bool:
    """True for the name of a file of a delta of SkyRL, which holds no weights."""
    return _SKYRL_PAYLOAD.fullmatch(file) is not None


def is_index(name: str) -> bool:
    """True if a file of that name is an index."""
    return _ANY_INDEX.fullmatch(name) is not None


def is_weights(name: str) -> bool:
    """True if a file of that name holds tensors, or is an index of such files."""
    return name.endswith(ENDING) or is_index(name)


_SKYRL_PAYLOAD = re.compile(r"delta-rank[0-9]+-file[0-9]+\.safetensors")
_ANY_INDEX = re.compile(r".*\.safetensors\.index(\.[^.]+)?\.json", re.DOTALL)
_INDEX = re.compile(r"(.+)\.safetensors\.index(\.[^.]+)?\.json", re.DOTALL)
_SHARD = re.compile(r"(.+?)-[0-9]{1,9}-of-[0-9]{1,9}(\.[^.]+)?\.safetensors", re.DOTALL)
_SHARD_PATTERN = re.compile(r"(.+?)-\{number[^}]*\}-of-\{count[^}]*\}\.safetensors")

_WITH_VARIANTS = ("model", "diffusion_pytorch_model")
"""The names that may have a variant; the text behind the last dot of any other is none, as in ``qwen2.5``."""

_MOST_BYTES = 200
"""Of a name, to which the number of a shard may be added; file systems take 255."""


class ModelName(Struct, frozen=True):
    """The names of the files of a model.

    Attributes:
        stem: their common beginning, the variant included.
        index: of the index of several shards.
    """

    stem: str = "model"
    index: str = INDEX_NAME

    @property
    def only_file(self) -> str:
        """The name of one file with all tensors."""
        return f"{self.stem}{ENDING}"

    def shard(self, number: int, count: int) -> str:
        """The name of a shard; ``number`` counts from 1."""
        return f"{self.stem}-{number:05d}-of-{count:05d}{ENDING}"


def name_of_index(index: str) -> ModelName:
    """The names of a model that has this index."""
    match = _INDEX.fullmatch(index)
    if match is None or not _is_plain(index):
        return ModelName()
    return ModelName(f"{match[1]}{match[2] or ''}", index)


def name_of_files(files: Iterable[str]) -> ModelName:
    """The names of a model in these files; the usual ones where they do not begin alike."""
    stems = {_stem(file) for file in files}
    stem = stems.pop() if len(stems) == 1 else ""
    return ModelName(stem, _index_of(stem)) if stem else ModelName()


def index_of_pattern(pattern: str) -> str | None:
    """The name of the index of shards with such names; None for a pattern without the name of a model."""
    match = _SHARD_PATTERN.fullmatch(pattern)
    return _index_of(match[1]) if match else None


def _stem(file: str) -> str:
    if not (file.endswith(ENDING) and _is_plain(file)):
        return ""
    shard = _SHARD.fullmatch(file)
    return f"{shard[1]}{shard[2] or ''}" if shard else file.removesuffix(ENDING)


def _is_plain(name: str) -> bool:
    """True for a name that is also allowed for the files of a target (``file_names``)."""
    return name.isprintable() and "\\" not in name and len(name.encode()) <= _MOST_BYTES


def _index_of(stem: str) -> str:
    base, _, variant = stem.rpartition(".")
    if base in _WITH_VARIANTS:
        return f"{base}{ENDING}.index.{variant}.json"
    return f"{stem}{ENDING}.index.json"


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
