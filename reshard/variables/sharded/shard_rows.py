"""ShardRows: the shard of each row of a variable, and the row's place in it.

Row ``i`` of ``n`` over ``k`` shards::

    'div', sizes 3 3 2        'mod', 8 rows over 3
    shard 0: 0 1 2            shard 0: 0 3 6      row i is in shard i % k
    shard 1: 3 4 5            shard 1: 1 4 7      at place i // k
    shard 2: 6 7              shard 2: 2 5

'div' shards may have any sizes, also 0; 'mod' determines the sizes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.errors import VariableError

if TYPE_CHECKING:
    import numpy as np

STRATEGIES = ("div", "mod")


class RowPart(Struct, frozen=True):
    """The rows that one shard contributes to a list of wanted rows: its rows at ``places`` go to positions ``at``.

    Both are ranges, or arrays of whole numbers, of equal length.
    """

    shard: int
    places: Any
    at: Any


@dataclass(frozen=True)
class ShardRows:
    """The rows of each shard of a variable: ``sizes`` rows each, assigned by ``strategy``.

    >>> ShardRows((3, 3, 2), "mod").of(1)
    range(1, 8, 3)

    Raises VariableError for an unknown strategy and for sizes that 'mod' does not give.
    """

    sizes: tuple[int, ...]
    strategy: str = "div"

    def __post_init__(self) -> None:
        check_strategy(self.strategy)
        if self.strategy == "div":
            return
        expected = even_sizes(self.total, len(self.sizes))
        if self.sizes != expected:
            raise VariableError(
                f"a 'mod' table of {self.total} rows in {len(self.sizes)} shards has "
                f"{list(expected)} rows in them, not {list(self.sizes)}; row i must be in shard "
                f"i % {len(self.sizes)}"
            )

    @classmethod
    def even(cls, total: int, shards: int, strategy: str = "div") -> ShardRows:
        """``total`` rows over ``shards``; the first ``total % shards`` have one row more."""
        return cls(even_sizes(total, shards), strategy)

    @cached_property
    def total(self) -> int:
        """Rows of the whole variable."""
        return sum(self.sizes)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first row of each shard, for 'div'."""
        return tuple(accumulate(self.sizes[:-1], initial=0))

    def of(self, shard: int) -> range:
        """The rows of ``shard``, in its order."""
        if self.strategy == "mod":
            return range(shard, self.total, len(self.sizes))
        return range(self.starts[shard], self.starts[shard] + self.sizes[shard])

    def owners(self, rows: Any, xp: Any) -> tuple[Any, Any]:
        """The shard of each row number and the place in that shard; ``xp`` is numpy or jax.numpy.

        The answer for a row outside of ``0 <= row < total`` is meaningless.
        """
        if self.strategy == "mod":
            return rows % len(self.sizes), rows // len(self.sizes)
        starts = xp.asarray(self.starts)
        shard = xp.searchsorted(starts + xp.asarray(self.sizes), rows, side="right")
        shard = xp.minimum(shard, len(self.sizes) - 1)
        return shard, rows - starts[shard]

    def parts_of_range(self, wanted: range) -> list[RowPart]:
        """The parts of a rising range of rows, in time independent of its length."""
        if self.strategy == "mod":
            return list(self._mod_parts(wanted))
        return list(self._div_parts(wanted))

    def parts_of(self, wanted: np.ndarray[Any, Any]) -> list[RowPart]:
        """The parts of row numbers ``0 <= row < total`` in any order, with or without repetitions."""
        import numpy as np

        shard, place = self.owners(wanted, np)
        order = np.argsort(shard, kind="stable")
        holders, starts = np.unique(shard[order], return_index=True)
        groups = np.split(order, starts[1:])
        return [RowPart(int(s), place[at], at) for s, at in zip(holders, groups, strict=False)]

    def _div_parts(self, wanted: range) -> Iterator[RowPart]:
        for shard, (start, size) in enumerate(zip(self.starts, self.sizes, strict=True)):
            at = range(bisect_left(wanted, start), bisect_left(wanted, start + size))
            if at:
                held = wanted[at.start : at.stop]
                yield RowPart(shard, range(held.start - start, held[-1] - start + 1, held.step), at)

    def _mod_parts(self, wanted: range) -> Iterator[RowPart]:
        # Every period-th wanted row is in the same shard, at evenly spaced places.
        shards = len(self.sizes)
        period = shards // math.gcd(wanted.step, shards)
        for first in range(min(period, len(wanted))):
            held = wanted[first::period]
            places = range(held[0] // shards, held[-1] // shards + 1, held.step // shards)
            yield RowPart(held[0] % shards, places, range(first, len(wanted), period))


def even_sizes(total: int, shards: int) -> tuple[int, ...]:
    """The number of rows of each shard; the first ``total % shards`` have one row more.

    >>> even_sizes(13, 5)
    (3, 3, 3, 2, 2)
    """
    base, extra = divmod(total, shards)
    return (base + 1,) * extra + (base,) * (shards - extra)


def check_strategy(strategy: Any) -> None:
    """Raises VariableError for anything but 'div' and 'mod'."""
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        raise VariableError(f"a partition strategy is 'div' or 'mod', not {strategy!r}")


def as_slice(rows: range) -> slice:
    """A rising range of non-negative numbers as a slice."""
    return slice(rows.start, rows.stop, rows.step)
