"""Compare checkpoints by the digests of their tensors, whatever mesh, chunks or codec they are stored in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from reshard.engine.read_digests import ReadLimits, tensor_digests
from reshard.engine.report import Progress
from reshard.formats.base import Reader, StoredTensor

Status = Literal["equal", "different", "only in A", "only in B", "recorded", "not recorded"]


@dataclass(frozen=True, slots=True)
class TensorVerdict:
    """What comparing one tensor gave.

    Attributes:
        status: "recorded" where stored bytes have the digest that was recorded when they were
            written; "not recorded" where there is none to compare with.
        digest_a: CRC-64/NVME of what is stored in A, 16 hex digits.
        digest_b: of what is stored in B, or what A recorded of itself where there is no B.
        detail: what differs, in words.
    """

    name: str
    status: Status
    digest_a: str | None
    digest_b: str | None
    detail: str = ""

    @property
    def is_difference(self) -> bool:
        return self.status in ("different", "only in A", "only in B")


@dataclass(frozen=True, slots=True)
class Verification:
    """What comparing two checkpoints, or one with its record, gave."""

    a: str
    b: str | None
    tensors: tuple[TensorVerdict, ...]

    @property
    def differences(self) -> int:
        return sum(v.is_difference for v in self.tensors)


def compare_stored(
    a: Reader, b: Reader, limits: ReadLimits, progress: Callable[[Progress], None] | None = None
) -> Verification:
    """Reads both and compares tensor by tensor: name, shape, dtype, and every bit."""
    alike = [
        n for n, tensor in a.tensors.items() if n in b.tensors and not _unlike(tensor, b.tensors[n])
    ]
    in_a = tensor_digests(a, limits, alike, progress)
    in_b = tensor_digests(b, limits, alike, progress)
    return Verification(a.uri, b.uri, tuple(_verdicts(a, b, in_a, in_b)))


def _verdicts(
    a: Reader, b: Reader, in_a: Mapping[str, str], in_b: Mapping[str, str]
) -> Iterator[TensorVerdict]:
    for name, tensor in a.tensors.items():
        if name not in b.tensors:
            yield TensorVerdict(name, "only in A", None, None, f"B has no tensor {name!r}")
        elif detail := _unlike(tensor, b.tensors[name]):
            yield TensorVerdict(name, "different", None, None, detail)
        elif in_a[name] != in_b[name]:
            yield TensorVerdict(name, "different", in_a[name], in_b[name], "the stored bits differ")
        else:
            yield TensorVerdict(name, "equal", in_a[name], in_b[name])
    for name in b.tensors:
        if name not in a.tensors:
            yield TensorVerdict(name, "only in B", None, None, f"A has no tensor {name!r}")


def _unlike(a: StoredTensor, b: StoredTensor) -> str:
    """What already sets two tensors apart before a byte is read; "" where nothing does."""
    if a.spec.shape != b.spec.shape:
        return f"shape {list(a.spec.shape)} in A, {list(b.spec.shape)} in B"
    if a.spec.dtype != b.spec.dtype:
        return f"dtype {a.spec.dtype} in A, {b.spec.dtype} in B"
    if a.is_key != b.is_key:
        return f"a PRNG key in {'A' if a.is_key else 'B'} only"
    return ""


def compare_recorded(
    a: Reader, limits: ReadLimits, progress: Callable[[Progress], None] | None = None
) -> Verification:
    """Reads a checkpoint and compares with the digests it recorded when it was written."""
    stored = tensor_digests(a, limits, None, progress)
    return Verification(
        a.uri, None, tuple(_recorded(n, stored[n], t.digest) for n, t in a.tensors.items())
    )


def _recorded(name: str, stored: str, recorded: str | None) -> TensorVerdict:
    if recorded is None:
        return TensorVerdict(
            name, "not recorded", stored, None, "no digest was recorded when it was written"
        )
    if stored != recorded:
        detail = "the stored bits are not those that were recorded when it was written"
        return TensorVerdict(name, "different", stored, recorded, detail)
    return TensorVerdict(name, "recorded", stored, recorded)
