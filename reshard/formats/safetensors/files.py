"""The files of a safetensors checkpoint: one file, or a folder of them with or without an index.

::

    model.safetensors                     a file by itself
    folder/model.safetensors              a folder with one file
    folder/model-00001-of-00002.safetensors, model-00002-of-00002.safetensors
    folder/model.safetensors.index.json   {"metadata": {…}, "weight_map": {NAME: FILE}}

The names in an index decide, as in transformers: whatever the files are called, ``weight_map`` says which of them holds
a tensor. An index can be named itself, where its folder has several. Without an index the names of the files must say that
they are one model.

A file may be a symbolic link that stays in the folder. In the cache of huggingface_hub every file of a snapshot is a
link to a blob of the same repository (``models--ORG--NAME/snapshots/REVISION/FILE`` → ``../../blobs/HASH``), and those
are followed too; a link to anywhere else is refused, since a folder from strangers may point at any file.

Files whose names differ in numbers only form one set: ``model-00001-of-00002.safetensors`` and its like, ``part-0``,
``rank3``. The number in ``fp16`` or ``bf16`` is part of a word: ``model.fp16.safetensors`` is a variant of
``model.safetensors``, another set. A name that says ``i-of-n`` gives the number of files in the set, counted from 0 or 1.

The names of the files of a model, by which its loaders find them.

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
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from reshard.arguments import Unlisted
from reshard.errors import MissingError, NotACheckpointError, PlanError, ReshardError
from reshard.formats.marks import SAFETENSORS_ENDING, is_index
from reshard.formats.safetensors.header import has_whole_size
from reshard.formats.safetensors.model_index import ModelIndex, read_model_index
from reshard.formats.target_files import FilesOf
from reshard.storage.location import Location

INDEX_NAME = f"model{SAFETENSORS_ENDING}.index.json"


def is_shard(file: str) -> bool:
    """True for the name of one of several files."""
    return _SHARD.fullmatch(file) is not None


def is_skyrl_payload(file: str) -> bool:
    """True for the name of a file of a delta of SkyRL, which holds no weights."""
    return _SKYRL_PAYLOAD.fullmatch(file) is not None


_SKYRL_PAYLOAD = re.compile(r"delta-rank[0-9]+-file[0-9]+\.safetensors")
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
        return f"{self.stem}{SAFETENSORS_ENDING}"

    def shard(self, number: int, count: int) -> str:
        """The name of a shard; ``number`` counts from 1."""
        return f"{self.stem}-{number:05d}-of-{count:05d}{SAFETENSORS_ENDING}"


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
    if not (file.endswith(SAFETENSORS_ENDING) and _is_plain(file)):
        return ""
    shard = _SHARD.fullmatch(file)
    return f"{shard[1]}{shard[2] or ''}" if shard else file.removesuffix(SAFETENSORS_ENDING)


def _is_plain(name: str) -> bool:
    """True for a name that is also allowed for the files of a target (``file_names``)."""
    return name.isprintable() and "\\" not in name and len(name.encode()) <= _MOST_BYTES


def _index_of(stem: str) -> str:
    base, _, variant = stem.rpartition(".")
    if base in _WITH_VARIANTS:
        return f"{base}{SAFETENSORS_ENDING}.index.{variant}.json"
    return f"{stem}{SAFETENSORS_ENDING}.index.json"


ONLY_FILE = f"model{SAFETENSORS_ENDING}"

_USUAL: dict[str, str] = {
    "one": ONLY_FILE,
    "ranks": f"model-rank-{{rank:05d}}-of-{{count:05d}}{SAFETENSORS_ENDING}",
    "dcp": f"shard-{{number:05d}}-model-00001-of-00001{SAFETENSORS_ENDING}",
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
    if not pattern.endswith(SAFETENSORS_ENDING) or not is_name or len(pattern) > 200:
        raise PlanError(
            f"file_names is {pattern[:220]!r}; expected the name of a file that ends in {SAFETENSORS_ENDING}, {_EXAMPLE}"
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


class Files(Struct, frozen=True):
    """The files of the tensors.

    Attributes:
        files: the safetensors files, by name.
        folder: the folder that they are in; None for a file by itself.
        index: the index; None for none.
        unlisted: the other safetensors files of the folder, which no index lists.
    """

    files: tuple[Location, ...]
    folder: Location | None = None
    index: ModelIndex | None = None
    unlisted: tuple[Location, ...] = ()


def files_of(root: Location, unlisted: Unlisted = "leave") -> Files:
    """The files of a checkpoint: a file, a folder, or an index.

    Raises NotACheckpointError where it is not clear which files are the model, MissingError where one of them is missing.
    """
    if is_named_index(root):
        return _indexed(root.parent, root, _names(root.parent))
    if not root.is_folder():
        if unlisted == "leave":
            refuse_lone_shard(root)
        return Files((root,))
    names = _names(root)
    indexes = list(filter(is_index, names))
    if len(indexes) > 1:
        raise NotACheckpointError(
            f"{root} holds {len(indexes)} indexes of safetensors files: {', '.join(indexes[:4])}; name the one to read, such as "
            f"{root / indexes[0]}"
        )
    if indexes:
        return _indexed(root, root / indexes[0], names)
    weights = [name for name in names if name.endswith(SAFETENSORS_ENDING)]
    if unlisted == "leave":
        refuse_several(root, weights)
    refuse_missing_files(root, weights)
    return Files(tuple(root / name for name in weights), root)


def is_named_index(root: Location) -> bool:
    """True if a location is an index, and not a folder or a file of tensors."""
    return is_index(root.name) and root.is_file()


def folder_of(root: Location) -> Location:
    """The folder of a checkpoint: that of an index, if one is named, else the location itself."""
    return root.parent if is_named_index(root) else root


def is_whole(folder: Location) -> bool:
    """True if all files of a safetensors model are in a folder, as far as names and sizes say; False for any other folder.

    Programs write such folders in place, the index last. A file without an index counts where it has the size that its header
    says; in a bucket, where files appear whole, any does.
    """
    try:
        names = _names(folder)
        indexes = list(filter(is_index, names))
        for name in indexes:
            read_model_index(folder / name, frozenset(names))
        weights = [name for name in names if name.endswith(SAFETENSORS_ENDING)]
        if indexes or not weights or any(map(is_skyrl_payload, weights)):
            return bool(indexes)
        at_once = not folder.traits.renames
        return is_whole_set(weights) and (
            at_once or all(has_whole_size(folder / name) for name in weights)
        )
    except ReshardError:
        return False


def _names(folder: Location) -> list[str]:
    return [entry.name for entry in folder.entries()]


def _indexed(folder: Location, file: Location, names: list[str]) -> Files:
    """The files that an index lists, and those that no index of the folder lists."""
    there = frozenset(names)
    index = read_model_index(file, there)
    of_others: set[str] = set()
    for name in filter(is_index, names):
        if name != file.name:
            with suppress(ReshardError):  # nobody asked for the other model
                of_others.update(read_model_index(folder / name, there).files)
    listed = index.files
    known = of_others.union(listed)
    unlisted = [name for name in names if name.endswith(SAFETENSORS_ENDING) and name not in known]
    return Files(
        tuple(folder / name for name in listed),
        folder,
        index,
        tuple(folder / name for name in unlisted),
    )


_OF = re.compile(r"(?<![0-9])([0-9]{1,9})([-_]of[-_])([0-9]{1,9})(?![0-9])")
_NUMBER = re.compile(r"(?<![0-9])(?<!fp)(?<!bf)(?<!int)(?<!float)[0-9]+")

_TORCH_SHARD = re.compile(r"shard-[0-9]+-")
"""In torch's distributed checkpoint the number of a rank, which need not have a piece of each file."""

_MOST_SHOWN = 6


class Numbered(Struct, frozen=True):
    """A name that says ``i-of-n``.

    Attributes:
        family: the rest of the name with ``n``, which the other files share.
        number, count: i and n.
        before, width, after: the parts that make the name of another file.
    """

    family: str
    number: int
    count: int
    before: str
    width: int
    after: str

    def name_of(self, number: int) -> str:
        """The name of another file of the family."""
        return f"{self.before}{number:0{self.width}d}{self.after}"


def number_in(name: str) -> Numbered | None:
    """The number in a name; None where it does not say ``i-of-n``."""
    found = _OF.search(name)
    if found is None:
        return None
    before, after = name[: found.start()], name[found.end(1) :]
    family = _TORCH_SHARD.sub("shard-#-", before) + "#" + after
    return Numbered(family, int(found[1]), int(found[3]), before, len(found[1]), after)


def refuse_lone_shard(file: Location) -> None:
    """Raises NotACheckpointError for a file whose name says that it is one of several."""
    one = number_in(file.name)
    if one is not None and one.count > 1:
        raise NotACheckpointError(
            f"{file} is one of {one.count} files of a model, as its name says; name the folder {file.parent} or the index in "
            'it, or take what is in this file alone (unlisted="include")'
        )


def refuse_several(folder: Location, names: Sequence[str]) -> None:
    """Raises NotACheckpointError where the files are of several sets, so that it is not clear which of them are the model."""
    sets = _sets(names)
    if len(sets) < 2:
        return
    shown = "; ".join(map(_set_text, sets[:_MOST_SHOWN]))
    more = f"; and {len(sets) - _MOST_SHOWN} more" if len(sets) > _MOST_SHOWN else ""
    alone = next((found[0] for found in sets if len(found) == 1), None)
    name_one = "" if alone is None else f"name the file to read, such as {folder / alone}; "
    raise NotACheckpointError(
        f"{folder} has safetensors files that may be different models, and no index that says which belong together: {shown}"
        f"{more}; {name_one}move the other models to folders of their own, or take all files as one model "
        '(unlisted="include")'
    )


def _sets(names: Sequence[str]) -> list[list[str]]:
    sets: dict[tuple[int | None, str], list[str]] = defaultdict(list)
    for name in names:
        one = number_in(name)
        sets[None if one is None else one.count, _NUMBER.sub("#", name)].append(name)
    return list(sets.values())


def _set_text(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more like it"


def refuse_missing_files(folder: Location, names: Sequence[str]) -> None:
    """Raises MissingError if a file is missing that the names of the others imply."""
    for family in _families(names):
        some = next(iter(family.values()))
        lost = _first_missing(family)
        if lost is not None:
            raise MissingError(
                f"{folder / some.name_of(lost)} is missing; {len(family)} of {some.count} are there, and no index says that "
                "these are all. Copy it there, or restore the folder from a copy"
            )


def is_whole_set(names: Sequence[str]) -> bool:
    """True if every file is there that the names imply."""
    return all(_first_missing(family) is None for family in _families(names))


def _first_missing(family: Mapping[int, Numbered]) -> int | None:
    some = next(iter(family.values()))
    is_rank = "rank" in some.before and some.count not in family
    first = 0 if is_rank or 0 in family else 1
    return next((n for n in range(first, first + some.count) if n not in family), None)


def _families(names: Sequence[str]) -> list[dict[int, Numbered]]:
    """The names of each family of numbered names, by their numbers."""
    families: dict[str, dict[int, Numbered]] = defaultdict(dict)
    for one in map(number_in, names):
        if one is not None:
            families[one.family].setdefault(one.number, one)
    return list(families.values())
