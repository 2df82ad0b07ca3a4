"""ProofReport: the result of comparing live arrays with an identity."""

from __future__ import annotations

from collections.abc import Iterator

from reshard.answers.record import Record, counted, several
from reshard.geometry.grid import Box
from reshard.geometry.sizes import format_bytes

SHOWN_BOXES = 3
"""Most differing parts that a report names; it counts the bytes of all."""


class ArrayProof(Record, frozen=True):
    """The result for this process's shards of one array; replicas count once.

    Attributes:
        nbytes: of the shards.
        proved_bytes: bytes that are those of the identity.
        cut_bytes: bytes in nodes of about 1 MiB that this process has only in part.
        needed: the smallest slice around a shard that cuts no node; None if none is cut.
        different_bytes: bytes in nodes that differ.
        differs: the boxes of the first of these nodes.
        problem: the reason why nothing could be compared; "" for none.
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
        """True if every byte is proved."""
        return not self.problem and self.proved_bytes == self.nbytes

    def sentences(self) -> Iterator[str]:
        """Sentences about unproved bytes, each with the remedy."""
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
    """The result of ``reshard.prove`` in this process: the bytes of live arrays that are those of an identity.

    Attributes:
        root: of the identity.
        tensors: in the order of the tree.
        absent: the number of the identity's tensors without an array here.
        seconds: wall time.
    """

    root: str
    tensors: tuple[ArrayProof, ...]
    absent: int
    seconds: float

    @property
    def is_ok(self) -> bool:
        """True if every byte of every array in this process is proved; tensors without an array do not count."""
        return all(tensor.is_ok for tensor in self.tensors)

    @property
    def has_differences(self) -> bool:
        """True if something contradicts the identity: other bytes, another shape or dtype, or a name that it lacks."""
        return any(tensor.problem or tensor.different_bytes for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of the shards of this process."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def proved_bytes(self) -> int:
        """The number of these bytes that are those of the identity."""
        return sum(tensor.proved_bytes for tensor in self.tensors)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences about unproved bytes, each with the remedy."""
        return tuple(said for tensor in self.tensors for said in tensor.sentences())

    def __repr__(self) -> str:
        proved = f"{format_bytes(self.proved_bytes)} of {format_bytes(self.nbytes)} proved"
        headline = f"{counted(len(self.tensors), 'tensor')}, {proved} in {self.seconds:.1f} s"
        absent = (
            [f"{counted(self.absent, 'tensor')} of the identity not here"] if self.absent else []
        )
        return several("ProofReport", headline, self.sentences, [*absent, f"root: {self.root}"])
