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
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from reshard.arguments import Unlisted
from reshard.errors import MissingError, NotACheckpointError, ReshardError
from reshard.formats.model_index import ModelIndex, read_model_index
from reshard.formats.safetensors.header import has_whole_size
from reshard.formats.safetensors.model_name import (
    ENDING,
    is_index,
    is_skyrl_payload,
)
from reshard.storage.location import Location


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
    weights = [name for name in names if name.endswith(ENDING)]
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
        weights = [name for name in names if name.endswith(ENDING)]
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
            of_others.update(_files_in(folder / name, there))
    listed = index.files
    known = of_others.union(listed)
    unlisted = [name for name in names if name.endswith(ENDING) and name not in known]
    return Files(
        tuple(folder / name for name in listed),
        folder,
        index,
        tuple(folder / name for name in unlisted),
    )


def _files_in(index: Location, there: frozenset[str]) -> list[str]:
    """The files of another model in the folder; none where its index cannot be read, which is not asked for."""
    try:
        return read_model_index(index, there).files
    except ReshardError:
        return []


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
