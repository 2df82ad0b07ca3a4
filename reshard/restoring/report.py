"""RestoreReport: the tensors and bytes that a restore read, verified and cast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec import field

from reshard.answers.record import Record, counted, several, warned
from reshard.engine.task import CastStats
from reshard.geometry.sizes import format_bytes
from reshard.restoring.outputs import NumpyArray
from reshard.restoring.plan import RestorePlan
from reshard.restoring.tensor_read import Restored


class RestoreReport(Record, frozen=True):
    """The tensors and bytes that a restore read, verified and cast, in this process.

    Attributes:
        tensors: number of tensors that were restored.
        verified: number of them that were compared with their recorded digest; the others have no digest, or this process
            needed only a part of them.
        read_bytes: stored bytes that were read.
        needed_bytes: stored bytes that had to be read: the needed elements of raw chunks, and every other needed chunk
            once.
        casts: the losses of each cast or arithmetic of a map, by name of the tensor.
        seconds: wall time, without opening the checkpoint.
        warnings: one sentence for each part of the checkpoint that was left out, each rule of the layout that matches no
            tensor, and each tensor that several match; and one about missing chunks.
        numpy: names of the tensors that were restored as numpy arrays.
        missing_chunks: number of chunks that are not stored, by the name of each tensor that lacks any; the fill value was taken.
    """

    tensors: int
    verified: int
    read_bytes: int
    needed_bytes: int
    casts: Mapping[str, CastStats]
    seconds: float
    warnings: tuple[str, ...] = ()
    numpy: tuple[str, ...] = ()
    missing_chunks: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        read = f"read {format_bytes(self.read_bytes)} in {self.seconds:.1f} s"
        known = f"{self.verified:,} verified by their digest"
        headline = f"{counted(self.tensors, 'tensor')}, {read}, {known}"
        casts = [f"cast {name!r}: {lost}" for name, lost in self.casts.items()]
        return several("RestoreReport", headline, casts, warned(self.warnings))

    @property
    def amplification(self) -> float:
        """Bytes read over bytes needed; 1.0 if nothing was needed."""
        return self.read_bytes / self.needed_bytes if self.needed_bytes else 1.0


def make_report(
    plan: RestorePlan,
    restored: Sequence[Restored],
    seconds: float,
    warnings: tuple[str, ...],
    missing_chunks: Mapping[str, int],
) -> RestoreReport:
    """The report of a restore that is done."""
    computed = plan.computed
    casts = {
        r.name: d.cast for r, d in zip(plan.reads, restored, strict=True) if r.is_cast or r.name in computed
    }  # fmt: skip
    return RestoreReport(
        len(restored),
        sum(done.is_verified for done in restored),
        sum(done.read_bytes for done in restored),
        sum(done.needed_bytes for done in restored),
        MappingProxyType(casts),
        seconds,
        warnings,
        tuple(
            r.name
            for r in plan.reads
            if isinstance(r.output, NumpyArray) and not r.output.is_scalar
        ),
        missing_chunks,
    )
