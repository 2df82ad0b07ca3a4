"""Which files without an index form one model, as their names say.

Files whose names differ in numbers only form one set: ``model-00001-of-00002.safetensors`` and its like, ``part-0``,
``rank3``. The number in ``fp16`` or ``bf16`` is part of a word: ``model.fp16.safetensors`` is a variant of
``model.safetensors``, another set. A name that says ``i-of-n`` says how many files the set has, counted from 0 or 1.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from reshard.errors import MissingError, NotACheckpointError
from reshard.storage.location import Location

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
        before, width, after: what makes the name of another file.
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
    """What a name says of its number; None where it does not say ``i-of-n``."""
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
    """Raises MissingError where a file is not there that the names of the others tell of."""
    for family in _families(names):
        some = next(iter(family.values()))
        lost = _first_missing(family)
        if lost is not None:
            raise MissingError(
                f"{folder / some.name_of(lost)} is missing; {len(family)} of {some.count} are there, and no index says that "
                "these are all. Copy it there, or restore the folder from a copy"
            )


def is_whole_set(names: Sequence[str]) -> bool:
    """Whether every file is there that the names tell of."""
    return all(_first_missing(family) is None for family in _families(names))


def _first_missing(family: Mapping[int, Numbered]) -> int | None:
    some = next(iter(family.values()))
    is_rank = "rank" in some.before and some.count not in family
    first = 0 if is_rank or 0 in family else 1
    return next((n for n in range(first, first + some.count) if n not in family), None)


def _families(names: Sequence[str]) -> list[dict[int, Numbered]]:
    """Of each family of numbered names, the names by their numbers."""
    families: dict[str, dict[int, Numbered]] = defaultdict(dict)
    for one in map(number_in, names):
        if one is not None:
            families[one.family].setdefault(one.number, one)
    return list(families.values())
