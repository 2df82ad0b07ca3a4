"""LeafTree: the tiles of a tensor that its hash is made of, and the binary tree of hashes over them.

Both follow from the shape and the size of an element alone, so that every mesh, chunking and format has the same. Dimension ``d``
is cut at ``i * n_d // 2 ** k_d``. The dimension with the fewest halvings so far is halved (the first of several) where more
than one element is left along it, of the last dimension 512 bytes, until the largest leaf has 64 KiB or less. The order
of the halvings is the tree: the first cuts the whole tensor in two, the next each of the halves, and so on::

    (4, 6) halved 0, 1, 0       leaves 0 1 | 2 3 of a half of the rows:     0 0 0 2 2 2
                                                                            1 1 1 3 3 3
                                                                            4 4 4 6 6 6
                                                                            5 5 5 7 7 7

The hashed bytes (numbers are u64, little-endian; a text is its length and its UTF-8)::

    leaf      the row-major little-endian bytes of a tile
    node      left, right
    tensor    name, dtype, rank, shape, top
    root      count, the tensors' hashes in the order of their names' bytes
    contents  count, each different (dtype, rank, shape, top) in the order of its bytes
    rest      count, each other leaf as name, kind, value, in the order of their bytes
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property, lru_cache
from importlib.util import find_spec
from itertools import product
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from reshard.errors import FormatError, MissingPackageError, PlanError
from reshard.geometry.grid import Box, Grid, Index
from reshard.version import how_to_install

LEAF_BYTES = 64 << 10
"""Leaves are halved until the largest has so many bytes, or fewer."""

KEPT_BYTES = 1 << 20
"""Size of the smallest nodes that are kept of a tree."""

LEAST_ROW_BYTES = 512
"""Rows of a leaf are not halved below this: they would be too short to copy and hash fast."""

# Trees with more are made anew each time: 256 of them, each within the budget, would take many times the budget.
_SHARED_CUTS = 1 << 14


class LeafSpan(Struct, frozen=True):
    """The part of a leaf within a band, along one dimension.

    Attributes:
        place: its share in the number of a leaf.
        part: the elements, as a slice of the band.
        begins, ends: true if the leaf begins, or ends, within the band.
    """

    place: int
    part: slice
    begins: bool
    ends: bool


class LeafTree(Struct, frozen=True, dict=True):
    """The leaves of a tensor of ``shape``.

    Attributes:
        order: the dimension that each level halves, from the top.
        grid: the leaves, as a grid.
    """

    shape: tuple[int, ...]
    itemsize: int
    order: tuple[int, ...]
    grid: Grid

    @classmethod
    def of(cls, shape: Sequence[int], itemsize: int) -> LeafTree:
        """The tree of a tensor; one leaf for a scalar and for an empty tensor."""
        _, cuts = leaves_and_cuts(shape, itemsize)
        make = _shared_tree if cuts <= _SHARED_CUTS else _tree
        return make(tuple(shape), itemsize)

    @property
    def depth(self) -> int:
        """The number of levels below the top."""
        return len(self.order)

    @property
    def leaves(self) -> int:
        """The number of leaves."""
        return 1 << self.depth

    def node_box(self, level: int, number: int) -> Box:
        """The box of a node; the top is level 0."""
        if not self.order:
            return Box.full(self.shape)
        at, left = [0] * len(self.shape), list(self.halvings)
        for dim, bit in zip(self.order[:level], _bits(number, level), strict=True):
            at[dim] = 2 * at[dim] + bit
            left[dim] -= 1
        first = tuple([i << k for i, k in zip(at, left, strict=True)])
        behind = tuple([(i + 1) << k for i, k in zip(at, left, strict=True)])
        cuts = self.grid.cuts
        return Box(
            tuple([c[i] for c, i in zip(cuts, first, strict=True)]),
            tuple([c[i] for c, i in zip(cuts, behind, strict=True)]),
        )

    @property
    def halvings(self) -> tuple[int, ...]:
        """The number of halvings of each dimension."""
        return tuple([self.order.count(dim) for dim in range(len(self.shape))])

    def kept_level(self, least_bytes: int) -> int:
        """The deepest level whose nodes have, on average, ``least_bytes`` or more; 0 where the whole tensor has fewer."""
        return _level_of(math.prod(self.shape) * self.itemsize, least_bytes, self.depth)

    def level_grid(self, level: int) -> Grid:
        """The boxes of the nodes of a level, as a grid."""
        return Grid(
            self.shape,
            tuple([c[:: 1 << k] for c, k in zip(self.grid.cuts, self._left(level), strict=True)]),
        )

    def node_at(self, level: int, index: Index) -> int:
        """The number of the node at an index of ``level_grid``."""
        if not self.order:
            return 0
        parts = zip(self._places, index, self._left(level), strict=True)
        return sum([places[i << k] for places, i, k in parts]) >> (self.depth - level)

    def _left(self, level: int) -> list[int]:
        """The number of halvings of each dimension below a level."""
        below = self.order[level:]
        return [below.count(dim) for dim in range(len(self.shape))]

    def in_band(self, band: Box) -> Iterator[tuple[LeafSpan, ...]]:
        """The spans of each leaf that a band touches, row-major; their places add up to the leaf's number."""
        return product(*map(self._spans, range(len(self.shape)), band.start, band.stop))

    def _spans(self, dim: int, start: int, stop: int) -> list[LeafSpan]:
        cuts, places = self.grid.cuts[dim], self._places[dim]
        if len(cuts) == 1:  # an empty tensor is one empty leaf
            return [LeafSpan(0, slice(0, 0), begins=True, ends=True)]
        first, behind = bisect_right(cuts, start) - 1, bisect_left(cuts, stop)
        return [
            LeafSpan(
                places[i],
                slice(max(cuts[i], start) - start, min(cuts[i + 1], stop) - start),
                begins=cuts[i] >= start,
                ends=cuts[i + 1] <= stop,
            )
            for i in range(first, behind)
        ]

    @cached_property
    def _places(self) -> tuple[tuple[int, ...], ...]:
        """The share of each part along each dimension in the number of a leaf."""
        bits: list[list[int]] = [[] for _ in self.shape]
        for level, dim in enumerate(self.order):
            bits[dim].append(1 << (self.depth - 1 - level))
        return tuple([tuple(_sums(of_dim)) for of_dim in bits])


def _sums(bits: Sequence[int]) -> list[int]:
    """The sums for all numbers of ``len(bits)`` binary digits; the first digit is worth ``bits[0]``."""
    found = [0]
    for bit in bits:
        found = [total for before in found for total in (before, before + bit)]
    return found


def _bits(number: int, count: int) -> Iterator[int]:
    return ((number >> at) & 1 for at in reversed(range(count)))


def kept_level_of(shape: Sequence[int], itemsize: int, least_bytes: int) -> int:
    """``LeafTree.kept_level`` from the shape alone; it makes no tree, since the shape of a file is not trusted."""
    depth = len(_order_of(tuple(shape), itemsize))
    return _level_of(math.prod(shape) * itemsize, least_bytes, depth)


def leaves_and_cuts(shape: Sequence[int], itemsize: int) -> tuple[int, int]:
    """The numbers of leaves and cuts of a tree, all dimensions together, without the tree."""
    order = _order_of(tuple(shape), itemsize)
    cuts = sum([(1 << order.count(dim)) + 1 for dim in range(len(shape))])
    return 1 << len(order), cuts


def _level_of(nbytes: int, least_bytes: int, depth: int) -> int:
    return min(depth, max(0, (nbytes // least_bytes).bit_length() - 1))


@lru_cache(maxsize=256)  # layers of a model repeat their shapes
def _shared_tree(shape: tuple[int, ...], itemsize: int) -> LeafTree:
    return _tree(shape, itemsize)


def _tree(shape: tuple[int, ...], itemsize: int) -> LeafTree:
    order = _order_of(shape, itemsize)
    if not order:
        return LeafTree(shape, itemsize, (), Grid.whole(shape))
    halvings = [order.count(dim) for dim in range(len(shape))]
    cuts = tuple(
        tuple([i * n >> k for i in range((1 << k) + 1)])
        for n, k in zip(shape, halvings, strict=True)
    )
    return LeafTree(shape, itemsize, order, Grid(shape, cuts))


@lru_cache(maxsize=256)
def _order_of(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple(_order(shape, itemsize))


def _order(shape: Sequence[int], itemsize: int) -> Iterator[int]:
    halvings = [0] * len(shape)
    while _largest_bytes(shape, halvings, itemsize) > LEAF_BYTES:
        dims = [d for d in range(len(shape)) if _may_halve(shape, halvings, itemsize, d)]
        if not dims:
            return
        dim = min(dims, key=lambda d: halvings[d])
        halvings[dim] += 1
        yield dim


def _largest_bytes(shape: Sequence[int], halvings: Sequence[int], itemsize: int) -> int:
    return math.prod(-(-n >> k) for n, k in zip(shape, halvings, strict=True)) * itemsize


def _may_halve(shape: Sequence[int], halvings: Sequence[int], itemsize: int, dim: int) -> bool:
    left = shape[dim] >> halvings[dim]
    is_last = dim == len(shape) - 1
    return left > 1 and (not is_last or left * itemsize >= LEAST_ROW_BYTES)


if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = bytes | npt.NDArray[np.uint8]

HASH_BYTES = 32
_ROOT = re.compile(r"[0-9a-f]{64}")

_CONTEXT = "reshard 2026 weights-identity v1 "


def keyed(kind: str) -> Any:
    """A hasher of one of the kinds: ``leaf``, ``node``, ``tensor``, ``root``, ``contents`` or ``rest``."""
    return _blake3()(key=_key(kind))


@cache  # it is asked for at each leaf
def _blake3() -> Any:
    check_installed()
    from blake3 import blake3

    return blake3


@cache
def _key(kind: str) -> bytes:
    key: bytes = _blake3()(b"", derive_key_context=_CONTEXT + kind).digest()
    return key


def is_root(text: str) -> bool:
    """True if a text has the form of a root, which a tensor's top has too: 64 hex digits in lower case."""
    return _ROOT.fullmatch(text) is not None


def checked_root(what: str, given: object) -> str:
    """A root in lower case; PlanError, naming what was given, for anything else."""
    root = given.lower() if isinstance(given, str) else ""
    if not is_root(root):
        raise PlanError(
            f"the {what} is {given!r}; expected a root of 64 hex digits, as reshard identify shows it"
        )
    return root


def is_installed() -> bool:
    """True if the package that hashes is there."""
    return find_spec("blake3") is not None


def check_installed() -> None:
    """Raises MissingPackageError where the package that hashes is missing, before anything is read."""
    try:
        import blake3  # noqa: F401  whether it is there
    except ImportError:
        raise MissingPackageError(
            f"an identity is made of BLAKE3, and the package blake3 is not installed; {how_to_install('identity')}"
        ) from None


def hash_of(kind: str, data: Bytes) -> bytes:
    """The hash of some bytes as one of the kinds."""
    found: bytes = _blake3()(data, key=_key(kind)).digest()
    return found


def folded(hashes: bytes, level: int) -> bytes:
    """The hashes of a level of a tree, given those of the level ``2 ** n`` times as wide: they are joined in pairs."""
    blake3, key = _blake3(), _key("node")
    while len(hashes) > HASH_BYTES << level:
        pairs = range(0, len(hashes), 2 * HASH_BYTES)
        hashes = b"".join([blake3(hashes[i : i + 2 * HASH_BYTES], key=key).digest() for i in pairs])
    return hashes


def identity_entry(dtype: str, shape: Sequence[int], top: bytes) -> bytes:
    """The bytes that are hashed for a tensor besides its name."""
    return b"".join([_text(dtype), _number(len(shape)), *map(_number, shape), top])


def root_of(entries: Iterable[tuple[str, bytes]]) -> bytes:
    """The root over tensors: the name of each, and its ``identity_entry``."""
    named = sorted((_utf8(name), entry) for name, entry in entries)
    tensors = [hash_of("tensor", _sized(name) + entry) for name, entry in named]
    return hash_of("root", _number(len(tensors)) + b"".join(tensors))


def contents_of(entries: Iterable[bytes]) -> bytes:
    """The root without names, of the tensors' entries; equal ones count once."""
    different = sorted(set(entries))
    return hash_of("contents", _number(len(different)) + b"".join(different))


def rest_of(leaves: Iterable[tuple[str, str, str]]) -> bytes:
    """The digest of the leaves that are no tensors: name, kind and value of each."""
    texts = sorted(b"".join(map(_text, leaf)) for leaf in leaves)
    return hash_of("rest", _number(len(texts)) + b"".join(texts))


def _number(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _text(text: str) -> bytes:
    return _sized(_utf8(text))


def _sized(data: bytes) -> bytes:
    return _number(len(data)) + data


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise FormatError(
            f"{text!r} cannot be written in UTF-8, in which an identity hashes names; rename it (rename)"
        ) from None
