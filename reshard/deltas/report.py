"""DeltaReport: the content of a delta, as a call returns it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from msgspec import field

from reshard.answers.record import Json, Record, counted, several
from reshard.geometry.sizes import format_bytes


class DeltaTensor(Record, frozen=True):
    """A tensor that a delta changes.

    Attributes:
        nbytes: of the tensor.
        elements, changed: number of its elements, and of those that differ.
        stored_bytes: of its payload.
        file: that holds the payload.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    elements: int
    changed: int
    stored_bytes: int
    file: str

    def __str__(self) -> str:
        share = self.changed / max(1, self.elements)
        return f"{self.name}: {self.changed:,} of {self.elements:,} elements ({share:.2%}), {format_bytes(self.stored_bytes)}"


class DeltaReport(Record, frozen=True):
    """The delta that ``reshard.delta`` made.

    Attributes:
        old, new: the checkpoints that were chosen.
        target: as it was given.
        version, base_version: such as ``"000007"``.
        encoding, checksum: of the payloads.
        tensors: those that changed, by name.
        all_tensors, total_bytes: of the whole version.
        stored_bytes: of the delta's files, without its index.
        base_digest, target_digest: of all tensors before and after.
        base_identity, target_identity: the roots that the weights before and after record; "" where there is none, or a map or rules
            make other tensors.
    """

    JSON: ClassVar[Json] = Json(later=("tensors", "warnings", "base_identity", "target_identity"))

    old: str
    new: str
    target: str
    version: str
    base_version: str
    encoding: str
    checksum: str
    all_tensors: int
    total_bytes: int
    stored_bytes: int
    base_digest: str
    target_digest: str
    seconds: float
    tensors: Mapping[str, DeltaTensor] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    base_identity: str = ""
    target_identity: str = ""

    @property
    def changed(self) -> int:
        """Number of elements that differ."""
        return sum(one.changed for one in self.tensors.values())

    def __str__(self) -> str:
        headline = (
            f"{self.target!r}: {len(self.tensors):,} of {counted(self.all_tensors, 'tensor')} changed, {format_bytes(self.stored_bytes)} for "
            f"{format_bytes(self.total_bytes)}"
        )
        return several("DeltaReport", headline, list(self.tensors.values()), self.warnings)
