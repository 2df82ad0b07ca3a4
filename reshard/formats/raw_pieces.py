"""Raw pieces: boxes of a tensor whose elements are uncompressed in files, and the chunks that are gathered from them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from reshard.geometry.box import Box

Gathered = Literal["no", "in ranges", "at once"]
"""Whether a chunk is gathered from raw pieces: no; yes, and any range of it can be read alone; yes, and all of it is
read at once, because pieces have another order of axes."""


class RawPiece(Struct, frozen=True):
    """A box of a tensor whose elements are in a file, uncompressed, little-endian and without gaps.

    Attributes:
        path: the text of the file's location; see ``storage.location.open_file``.
        offset: of its first byte in the file.
        order: the tensor's axes from the one that is stored slowest to the fastest; () for row-major.
        version: which content of the file is meant, where its store names contents; see ``FileStatus.version``.
    """

    box: Box
    path: str
    offset: int
    order: tuple[int, ...] = ()
    version: str = ""


class Pieces(Struct, frozen=True):
    """A chunk that is gathered from raw pieces.

    Attributes:
        box: of the chunk in its tensor.
        pieces: they contain each of its elements once, and may contain elements of other chunks too.
    """

    box: Box
    itemsize: int
    pieces: tuple[RawPiece, ...]
