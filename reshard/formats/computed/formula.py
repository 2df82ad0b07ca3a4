"""Computation: makes one open checkpoint of another. Formula: the way to compute a tensor from others, box by box."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from reshard.formats.base import Reader
    from reshard.geometry.grid import Box
    from reshard.storage.location import Location


class Computation(Protocol):
    """A maker of one open checkpoint from another: a step between opening and everything else.

    Attributes:
        option: the name of the option that asks for it, and its value as plain data, from which it can be made again.
        text: all that it does, for the key of a conversion.
        tensor_bytes: memory that it takes for each tensor of the checkpoint, an overestimate.
    """

    @property
    def option(self) -> tuple[str, object]: ...

    @property
    def text(self) -> str: ...

    @property
    def tensor_bytes(self) -> int: ...

    def applied(self, base: Reader, root: Location) -> Reader:
        """The checkpoint that it makes of ``base``, which was opened at ``root``. Reads no tensor bytes but of small operands."""
        ...

    @property
    def places(self) -> Sequence[Location]:
        """The other checkpoints and folders that it reads, none of which may be a target, contain one, or be inside one."""
        ...


class Formula(Struct, frozen=True):
    """The way to compute a box of a tensor from boxes of its operands; frozen, and small: it travels with each chunk.

    A subclass implements ``boxes`` and ``compute``. Both get boxes of the result, in the coordinates of the whole tensor.
    """

    @property
    def grain(self) -> tuple[int, ...]:
        """Windows begin and end at multiples along each dimension, or at an end of the chunk; () for anywhere."""
        return ()

    @property
    def cut_order(self) -> tuple[int, ...]:
        """The dimensions in the order in which large chunks are cut along them; () for their own order.

        Another order suits held operands that lie in memory in another order than the result.
        """
        return ()

    @property
    def window_elements(self) -> int:
        """The most elements of the result that are computed at once."""
        return 1 << 16

    @property
    def scratch_bytes(self) -> int:
        """Memory that ``compute`` takes for each element of a window, besides operands and result."""
        return 16

    @property
    def fixed_bytes(self) -> int:
        """Memory that it takes besides, whatever the window."""
        return 0

    def places(self) -> Iterator[tuple[str, str, str]]:
        """The files that it reads for a chunk besides operands: path, version, and a text of what is read of it."""
        return iter(())

    @property
    def is_opaque(self) -> bool:
        """True if operands and result are viewed as integers that keep every bit, and not as numbers."""
        return False

    @property
    def is_sequential(self) -> bool:
        """True if it must see all windows of a chunk, in order, for its checks at the end."""
        return False

    def boxes(self, box: Box) -> Sequence[Box]:
        """The box of each operand that a box of the result needs."""
        raise NotImplementedError

    def opened(self, where: str, nbytes: int) -> Calculation:
        """The calculation of a chunk of ``nbytes``, whose name for messages is ``where``."""
        del where, nbytes
        return Calculation(self)

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        """Fills ``out``, a contiguous array of the shape of ``box``, from arrays of the shapes of ``boxes(box)``; must not change them."""
        raise NotImplementedError


class Calculation:
    """Computes the windows of one chunk, which come in order. A formula with a state has a subclass."""

    def __init__(self, formula: Formula) -> None:
        self._formula = formula

    def compute(self, box: Box, operands: Sequence[Any], out: Any) -> None:
        """As ``Formula.compute``."""
        self._formula.compute(box, operands, out)

    def check_end(self) -> None:
        """Raises CorruptError or VerificationError if what was computed is not what was recorded; after the last window."""

    def close(self) -> None:
        """Closes what is open, without checks; may be called twice."""
