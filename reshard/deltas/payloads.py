"""Makes payloads: takes the bytes of a tensor before and after, writes a frame of zstd, and fills the files of a delta.

Elements are compared by their bytes, so that -0.0 and the payload of a NaN count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from reshard.arguments import DeltaEncoding
from reshard.checksums.sums import digest_of_bytes
from reshard.errors import PlanError
from reshard.formats.delta.changes import COUNT_BYTES, LEVEL
from reshard.formats.delta.index_values import Checksum, hasher
from reshard.formats.safetensors.header import HeaderEntry, safetensors_header
from reshard.layout.tensor_spec import TensorSpec
from reshard.storage.local.spool import Spool, Spooled
from reshard.storage.location import Location

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

BLOCK_BYTES = 192 << 10
"""Size of a block: fits the cache of a processor; a multiple of the size of every element, so that none is cut."""

POSITIONS = 1 << 32
"""Number of positions of ``overwrite``, which are u32."""


class TensorPayload(ABC):
    """The changes of one tensor.

    Attributes:
        changed: number of elements that differ so far.
        frame: the payload, once it is finished.
        crcs: the digests of all bytes before and after as ``fingerprint`` has them, if they were asked for; 16 hex digits.
    """

    def __init__(
        self, spec: TensorSpec, checksum: Checksum, spool: Spool, with_crcs: tuple[bool, bool]
    ) -> None:
        self.spec = spec
        self.changed = 0
        self.frame = Spooled([])
        self.spool = spool
        self._old, self._new = hasher(checksum), hasher(checksum)
        self._with_crcs = with_crcs
        self._crcs = [0, 0]

    def add(self, old: Bytes, new: Bytes, start: int) -> None:
        """Takes the next bytes of both, which begin at byte ``start`` of the tensor."""
        self._old.update(old.data)
        self._new.update(new.data)
        for side, data in enumerate((old, new)):
            if self._with_crcs[side]:
                self._crcs[side] = digest_of_bytes(data.data, self._crcs[side])
        for at in range(0, len(old), BLOCK_BYTES):
            difference = np.bitwise_xor(old[at : at + BLOCK_BYTES], new[at : at + BLOCK_BYTES])
            self.changed += changed_elements(difference, self.spec.itemsize)
            self.take(difference, new[at : at + BLOCK_BYTES], start + at)

    @property
    def digests(self) -> tuple[str, str]:
        """The checksums of all bytes before and after."""
        return self._old.hexdigest(), self._new.hexdigest()

    @property
    def crcs(self) -> tuple[str, str]:
        return f"{self._crcs[0]:016x}", f"{self._crcs[1]:016x}"

    @abstractmethod
    def take(self, difference: Bytes, new: Bytes, start: int) -> None:
        """Takes the XOR of a block, and its new bytes."""

    @abstractmethod
    def finish(self) -> None:
        """Ends the frame, after the last block."""


class XorPayload(TensorPayload):
    """The XOR of all bytes."""

    def __init__(
        self, spec: TensorSpec, checksum: Checksum, spool: Spool, with_crcs: tuple[bool, bool]
    ) -> None:
        super().__init__(spec, checksum, spool, with_crcs)
        # Exists from the first block to the last, since there may be any number of tensors.
        self._compressor: Any = None

    def take(self, difference: Bytes, _new: Bytes, _start: int) -> None:
        if self._compressor is None:
            self._compressor = _compressor(self.spec.nbytes)
        self.spool.append(self.frame, self._compressor.compress(difference.data))

    def finish(self) -> None:
        if self._compressor is not None:
            self.spool.append(self.frame, self._compressor.flush())
        self._compressor = None


class OverwritePayload(TensorPayload):
    """The positions of the bytes that differ, and the new bytes. Both are spooled: their number comes first in the frame."""

    def __init__(
        self, spec: TensorSpec, checksum: Checksum, spool: Spool, with_crcs: tuple[bool, bool]
    ) -> None:
        super().__init__(spec, checksum, spool, with_crcs)
        self._positions, self._values = Spooled([]), Spooled([])

    def take(self, difference: Bytes, new: Bytes, start: int) -> None:
        places = np.flatnonzero(difference)
        self.spool.append(self._positions, (places + start).astype("<u4").tobytes())
        self.spool.append(self._values, new[places].tobytes())

    def finish(self) -> None:
        size = COUNT_BYTES + self._positions.nbytes + self._values.nbytes
        compressor = _compressor(size)
        count = self._values.nbytes.to_bytes(COUNT_BYTES, "little")
        self.spool.append(self.frame, compressor.compress(count))
        for part in (self._positions, self._values):
            for data in self.spool.read(part):
                self.spool.append(self.frame, compressor.compress(data))
        self.spool.append(self.frame, compressor.flush())
        self._positions, self._values = Spooled([]), Spooled([])


PAYLOADS: Mapping[DeltaEncoding, type[TensorPayload]] = {
    "xor": XorPayload,
    "overwrite": OverwritePayload,
}


def payload_of(
    encoding: DeltaEncoding,
    spec: TensorSpec,
    checksum: Checksum,
    spool: Spool,
    with_crcs: tuple[bool, bool],
) -> TensorPayload:
    """A new payload; ``with_crcs``: true for each side whose CRC is taken, too."""
    return PAYLOADS[encoding](spec, checksum, spool, with_crcs)


def refuse_wrapping(encoding: DeltaEncoding, spec: TensorSpec) -> None:
    """Raises PlanError for a tensor whose positions would wrap around."""
    if encoding == "overwrite" and spec.nbytes >= POSITIONS:
        raise PlanError(
            f"{spec.name!r} has {spec.nbytes:,} bytes, but positions of overwrite end at {POSITIONS:,}: a receiver would change other bytes; choose "
            "the encoding xor"
        )


def changed_elements(difference: Bytes, itemsize: int) -> int:
    """The number of elements of ``itemsize`` bytes that are not zero."""
    if itemsize in (1, 2, 4, 8):
        return int(np.count_nonzero(difference.view(f"u{itemsize}")))
    return int(np.count_nonzero(difference.reshape(-1, itemsize).any(axis=1)))


def _compressor(nbytes: int) -> Any:
    import zstandard

    return zstandard.ZstdCompressor(level=LEVEL).compressobj(size=nbytes)


class PayloadFile(Struct, frozen=True):
    """A file of a delta."""

    name: str
    payloads: tuple[TensorPayload, ...]


def payload_files(payloads: Sequence[TensorPayload], file_bytes: int) -> list[PayloadFile]:
    """The files of payloads, in their order; a payload that is larger than a file has one of its own."""
    groups: list[list[TensorPayload]] = []
    taken = 0
    for payload in payloads:
        nbytes = payload.frame.nbytes
        if not groups or taken + nbytes > file_bytes:
            groups.append([])
            taken = 0
        groups[-1].append(payload)
        taken += nbytes
    count = len(groups)
    return [
        PayloadFile(f"model-{number:05d}-of-{count:05d}.safetensors", tuple(group))
        for number, group in enumerate(groups)
    ]


def write_payload_files(
    files: Sequence[PayloadFile], root: Location, spool: Spool, workers: int
) -> int:
    """Writes the files, several at once; returns their bytes."""
    with ThreadPoolExecutor(max(1, min(workers, len(files))), "reshard.delta") as threads:
        return sum(threads.map(partial(_write, root=root, spool=spool), files))


def weight_map(files: Sequence[PayloadFile]) -> Mapping[str, str]:
    """The file of each tensor."""
    return {one.spec.name: file.name for file in files for one in file.payloads}


def _write(file: PayloadFile, root: Location, spool: Spool) -> int:
    entries = [HeaderEntry(p.spec.name, "uint8", (p.frame.nbytes,)) for p in file.payloads]
    header = safetensors_header(entries, {p.spec.name: p.digests[1] for p in file.payloads})
    nbytes = len(header) + sum(entry.nbytes for entry in entries)
    (root / file.name).write_pieces(_pieces(file, header, spool), nbytes)
    return nbytes


def _pieces(file: PayloadFile, header: bytes, spool: Spool) -> Iterator[bytes]:
    yield header
    for payload in file.payloads:
        yield from spool.read(payload.frame)
