"""ProofReport: which bytes of live arrays are those of an identity."""

from __future__ import annotations

from collections.abc import Iterator

from reshard.geometry.box import Box
from reshard.geometry.sizes import format_bytes
from reshard.record import Record, counted, several

SHOWN_BOXES = 3
"""Parts that differ which a report names; it counts the bytes of all."""


class ArrayProof(Record, frozen=True):
    """What is proved of the shards of one array that this process has; replicas count once.

    Attributes:
        nbytes: of the shards.
        proved_bytes: are those of the identity.
        cut_bytes: belong to nodes of about 1 MiB of which this process has only a part.
        needed: the smallest slice around a shard that cuts no node; None where none is cut.
        different_bytes: in nodes that differ.
        differs: the boxes of the first of these nodes.
        problem: why nothing could be compared; "" where it could.
    """

    name: str
    nbytes: int
    proved_bytes: int = 0
    cut_bytes: int = 0
    needed: Box | None = None
    different_bytes: int = 0
    differs: tuple[Box, ...] = ()
    problem: str = ""

    @property
    def is_ok(self) -> bool:
        """Whether every byte is proved."""
        return not self.problem and self.proved_bytes == self.nbytes

    def sentences(self) -> Iterator[str]:
        """What is not proved, and what to do, a sentence each."""
        if self.problem:
            yield f"{self.name!r} {self.problem}"
        if self.different_bytes:
            boxes = ", ".join(map(str, self.differs))
            yield (
                f"{self.name!r} differs from the identity in {boxes}, {format_bytes(self.different_bytes)} in all; load it anew from a "
                "copy that reshard verify --identity accepts"
            )
        if self.cut_bytes:
            yield (
                f"{format_bytes(self.cut_bytes)} of {self.name!r} cannot be proved from the shards of this process, which cut nodes of "
                f"the identity; a process with {self.needed} could"
            )


class ProofReport(Record, frozen=True):
    """Which bytes of live arrays are those of an identity, in this process.

    Attributes:
        root: of the identity.
        tensors: in the order of the tree.
        absent: how many tensors of the identity have no array here.
        seconds: wall time.
    """

    root: str
    tensors: tuple[ArrayProof, ...]
    absent: int
    seconds: float

    @property
    def is_ok(self) -> bool:
        """Whether every byte of every array in this process is proved; tensors without an array do not count."""
        return all(tensor.is_ok for tensor in self.tensors)

    @property
    def has_differences(self) -> bool:
        """Whether something is not what the identity says: other bytes, another shape or dtype, or a name that it lacks."""
        return any(tensor.problem or tensor.different_bytes for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of the shards of this process."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def proved_bytes(self) -> int:
        """How many of them are those of the identity."""
        return sum(tensor.proved_bytes for tensor in self.tensors)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is not proved, and what to do, a sentence each."""
        return tuple(said for tensor in self.tensors for said in tensor.sentences())

    def __repr__(self) -> str:
        proved = f"{format_bytes(self.proved_bytes)} of {format_bytes(self.nbytes)} proved"
        headline = f"{counted(len(self.tensors), 'tensor')}, {proved} in {self.seconds:.1f} s"
        absent = (
            [f"{counted(self.absent, 'tensor')} of the identity not here"] if self.absent else []
        )
        return several("ProofReport", headline, self.sentences, [*absent, f"root: {self.root}"])
