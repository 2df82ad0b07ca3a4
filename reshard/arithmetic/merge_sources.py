"""MergeSource: a checkpoint that takes part in a merge. A path may stand for several steps of a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from reshard.arguments import Unlisted, check_positive, path_of
from reshard.arithmetic.mapped import mapped_reader
from reshard.errors import NotACheckpointError, PlanError
from reshard.formats.base import Reader
from reshard.formats.choose import choose_checkpoint
from reshard.formats.registry import CheckpointPath, open_reader
from reshard.formats.steps import run_steps, steps_text
from reshard.maps.given_map import GivenMap, map_of
from reshard.storage.location import locate

MAX_SOURCES = 1000
"""Most checkpoints of a merge; all are open at once."""

_RANGE = re.compile(r"\{([0-9]{1,18})\.\.([0-9]{1,18})(?:\.\.([0-9]{1,18}))?\}", re.ASCII)


class MergeSource(Struct, frozen=True):
    """A checkpoint that takes part in a merge.

    Attributes:
        given: the map that makes its tensors; None for those that are stored.
    """

    path: str
    given: GivenMap | None = None
    unlisted: Unlisted = "leave"

    @classmethod
    def asked(cls, given: Any, unlisted: Unlisted) -> MergeSource:
        """A path, or a pair of a path and a map. Raises as ``map_of``."""
        is_pair = isinstance(given, tuple | list) and len(given) == 2
        path, by = given if is_pair else (given, None)
        return cls(path_of("source", path), map_of(by), unlisted)

    @property
    def plain(self) -> list[Any]:
        """The pair as plain data, with the absolute path."""
        return [str(locate(self.path)), None if self.given is None else self.given.file.plain]

    def opened(self) -> Reader:
        """The open checkpoint, with its map."""
        return self.mapped(open_reader(CheckpointPath.at(self.path, self.unlisted)))

    def mapped(self, reader: Reader) -> Reader:
        """The tensors that the map makes of it, once it is open."""
        return reader if self.given is None else mapped_reader(reader, self.given)


def asked_sources(given: Any, last: Any, unlisted: Unlisted) -> tuple[MergeSource, ...]:
    """The checkpoints of a merge, the oldest first.

    Args:
        last: the number of the last steps of the run that is given alone; None for checkpoints that are named.

    Raises PlanError for anything but a list of paths and pairs, NotACheckpointError for steps that are not there.
    """
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise PlanError(
            f"sources is {given!r}; expected a list with the path of each checkpoint, such as ['run/9000', 'run/10000']"
        )
    asked = [MergeSource.asked(each, unlisted) for each in given]
    if last is not None:
        check_positive("last", last, "steps of the run, such as 8", has_default=False)
        if len(asked) != 1:
            raise PlanError(
                f"last is {last}, but {len(asked)} checkpoints are given; give the folder of one run (last)"
            )
    most = MAX_SOURCES + 1
    found = [
        replace(each, path=path)
        for each in asked
        for path in islice(_each(each.path) if last is None else _last(each.path, last), most)
    ]
    if len(found) >= most:
        raise PlanError(
            f"more than {MAX_SOURCES:,} checkpoints are given, which would all be open at once; merge fewer of them, and then the results"
        )
    return tuple(found)


def _each(path: str) -> Iterator[str]:
    """The paths that a range such as ``run/{8000..10000..500}`` stands for, as in a shell; a path without one is itself.

    Where a range is the whole last part of a path, its numbers are those of steps, whatever word stands before them.
    """
    found = _RANGE.search(path)
    if found is None:
        yield path
        return
    first, end, apart = int(found[1]), int(found[2]), int(found[3] or 1)
    if apart < 1:
        raise PlanError(f"{path}: the numbers of the range are {apart} apart; expected 1 or more")
    before, behind = path[: found.start()], path[found.end() :]
    digits = len(found[1]) if found[1].startswith("0") else 1
    for number in range(first, end + 1, apart) if first <= end else range(first, end - 1, -apart):
        if before.endswith("/") and not behind.strip("/") and digits == 1:
            yield choose_checkpoint(before.rstrip("/") or "/", number, None, "run").path
        else:
            yield f"{before}{number:0{digits}d}{behind}"


def _last(path: str, count: int) -> Iterator[str]:
    """The last steps of a run, the oldest first."""
    steps = run_steps(locate(path), any_prefix=True)
    if len(steps) < count:
        has = steps_text(one.step for one in steps) if steps else "no steps"
        raise NotACheckpointError(
            f"{path} has {has}, but the last {count} are asked for; give the folder of a run with as many, or ask for fewer (last)"
        )
    return (f"{path.rstrip('/')}/{one.name}" for one in steps[-count:])
