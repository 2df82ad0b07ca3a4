"""One node of an OCDBT database's B-tree, decoded in a stream: its columns, then its small values.

A node is a block (``ocdbt_block``) with the magic 0x0cdb20de and the body (B+tree node format)::

    height, table of data files, number of entries, columns

The columns are: the length of the prefix that each key shares with the one before, the length of its rest, the
rests, and the locations of values or children. A node of 200,000 keys takes some MiB as arrays, but 250 MiB with a
dictionary for each key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from msgspec import Struct

from reshard.formats.contents import Extent
from reshard.formats.limits import MAX_INLINE_BYTES, MAX_NODE_BYTES
from reshard.formats.ocdbt.manifest import MAX_KEY_BYTES, DataFile, IndexBlock, data_files

if TYPE_CHECKING:
    from reshard.formats.ocdbt.manifest import Column

MAX_ENTRIES = 1 << 20
"""TensorStore's own limit for a node."""

_MAGIC = 0x0CDB20DE


class NodeEntry(Struct, frozen=True):
    """One entry of a node.

    Attributes:
        key: in a leaf the key without the leaf's prefix; in an inner node the prefix that all keys below it share.
        file: the file of the value or the child; None if ``inline`` has the value.
    """

    key: bytes
    file: DataFile | None
    offset: int
    length: int
    inline: bytes = b""


class Node:
    """A node in a file, opened; ``entries`` reads it to its end and then checks its CRC32C.

    Args:
        base: the base path of its file.
        where: names database and node in messages.

    Raises CorruptError for anything that contradicts the format, StorageError if the file cannot be read.
    """

    def __init__(self, extent: Extent, base: str, where: str) -> None:
        self._block = IndexBlock(extent, _MAGIC, "node of a B-tree", where)
        self._body = self._block.body
        try:
            self.height = self._body.take(1)[0]
            self._files = data_files(self._body, base)
            self.count = self._body.number()
            if not 0 < self.count <= MAX_ENTRIES:
                self._body.refuse(f"it has {self.count} entries")
        except BaseException:
            self.close()
            raise

    def entries(self) -> Iterator[NodeEntry]:
        """The entries in order; the node is closed afterwards."""
        with closing(self):
            yield from self._children() if self.height else self._values()
            self._body.check_end()
            self._block.check()

    def close(self) -> None:
        self._block.close()

    def _values(self) -> Iterator[NodeEntry]:
        body, count = self._body, self.count
        shared, rest = self._key_lengths()
        suffixes = self._suffixes(rest)
        lengths, kinds = body.column(count), body.column(count)
        if int(kinds.max()) > 1:
            body.refuse("it has a value of an unknown kind")
        outside = int(kinds.sum())
        numbers, offsets = body.column(outside), body.column(outside)
        self._check_files(numbers)
        places = zip(numbers.tolist(), offsets.tolist(), strict=True)
        keys = _keys(shared, rest, suffixes)
        for key, length, kind in zip(keys, lengths.tolist(), kinds.tolist(), strict=True):
            if kind:
                number, offset = next(places)
                yield NodeEntry(key, self._files[number], offset, length)
            else:
                if length > MAX_INLINE_BYTES:
                    body.refuse(
                        f"it has a value of {length:,} bytes, and at most {MAX_INLINE_BYTES:,} are read"
                    )
                yield NodeEntry(key, None, 0, length, body.take(length))

    def _children(self) -> Iterator[NodeEntry]:
        body, count = self._body, self.count
        shared, rest = self._key_lengths()
        common = body.column(count)
        suffixes = self._suffixes(rest)
        numbers, offsets, lengths = body.column(count), body.column(count), body.column(count)
        self._check_files(numbers)
        for _ in ("keys", "bytes of the tree", "bytes of values"):
            body.column(count)
        keys = _keys(shared, rest, suffixes)
        places = zip(numbers.tolist(), offsets.tolist(), lengths.tolist(), strict=True)
        for key, kept, (number, offset, length) in zip(keys, common.tolist(), places, strict=True):
            if kept > len(key):
                body.refuse("a child's keys share more than its first key has")
            yield NodeEntry(key[:kept], self._files[number], offset, length)

    def _key_lengths(self) -> tuple[Column, Column]:
        """The checked lengths, for each key, of the prefix that it shares with the one before, and of its rest."""
        import numpy as np

        shared = np.concatenate([np.zeros(1, np.int64), self._body.column(self.count - 1)])
        rest = self._body.column(self.count)
        whole = shared + rest
        if int(rest.max()) > MAX_KEY_BYTES or int(whole.max()) > MAX_KEY_BYTES:
            self._body.refuse(f"it has a key of more than {MAX_KEY_BYTES:,} bytes")
        if (shared[1:] > whole[:-1]).any():
            self._body.refuse("a key shares more than the key before it has")
        return shared, rest

    def _suffixes(self, rest: Column) -> bytes:
        size = int(rest.sum())
        if size > MAX_NODE_BYTES:
            self._body.refuse(
                f"its keys take {size:,} bytes, and at most {MAX_NODE_BYTES:,} are read"
            )
        return self._body.take(size)

    def _check_files(self, numbers: Column) -> None:
        if len(numbers) and int(numbers.max()) >= len(self._files):
            self._body.refuse("it names a data file that is not in its table")


def _keys(shared: Column, rest: Column, suffixes: bytes) -> Iterator[bytes]:
    key, at = b"", 0
    for kept, added in zip(shared.tolist(), rest.tolist(), strict=True):
        key = key[:kept] + suffixes[at : at + added]
        at += added
        yield key
