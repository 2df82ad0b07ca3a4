"""Compare checkpoints by the digests of their tensors, whatever mesh, chunks or codec they are stored in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from msgspec import Struct

from reshard.engine.read_digests import ReadLimits, tensor_digests
from reshard.engine.report import Progress
from reshard.formats.base import Reader, StoredTensor
from reshard.formats.orbax.folder_record import FileVerdict

Status = Literal[
    "equal",
    "different",
    "damaged",
    "only in A",
    "only in B",
    "recorded",
    "checksum",
    "not recorded",
]

AGREEING: frozenset[Status] = frozenset({"equal", "recorded", "checksum"})


class TensorVerdict(Struct, frozen=True):
    """What comparing one tensor gave.

    Attributes:
        status: "recorded" where stored bytes have the digest that was recorded when they were
            written; "checksum" where none was recorded, but every chunk has the CRC32C that is stored
            with it; "not recorded" where there is nothing to compare with; "damaged" where stored
            bytes cannot be read, or are not those that were recorded.
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
        return self.status in ("different", "damaged", "only in A", "only in B")


class Verification(Struct, frozen=True):
    """What comparing two checkpoints, or one with its record, gave.

    Attributes:
        files: every file that was compared with a record, of A and of B.
        damage: why a checkpoint that has a record of itself could not be read, if so.
        warnings: what a person should know, one sentence each.
    """

    a: str
    b: str | None
    tensors: tuple[TensorVerdict, ...]
    files: tuple[FileVerdict, ...] = ()
    damage: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def differences(self) -> int:
        """Tensors and files that differ, and checkpoints that cannot be read."""
        tensors = sum(v.is_difference for v in self.tensors)
        return tensors + sum(f.is_difference for f in self.files) + len(self.damage)

    @property
    def is_told(self) -> bool:
        """Whether anything could be compared."""
        told = any(t.status != "not recorded" for t in self.tensors)
        return told or bool(self.differences) or not self.tensors


def compare_stored(
    a: Reader, b: Reader, limits: ReadLimits, progress: Callable[[Progress], None] | None = None
) -> Verification:
    """Reads both and compares tensor by tensor: name, shape, dtype, and every bit."""
    alike = [
        n for n, tensor in a.tensors.items() if n in b.tensors and not _unlike(tensor, b.tensors[n])
    ]
    a_damage: dict[str, str] = {}
    b_damage: dict[str, str] = {}
    in_a = tensor_digests(a, limits, alike, progress, damage=a_damage, stage="reading")
    in_b = tensor_digests(b, limits, alike, progress, damage=b_damage, stage="reading")
    damaged = {**_not_as_recorded(b, in_b, "B"), **_not_as_recorded(a, in_a, "A")}
    damaged |= {**_of_side(b_damage, "B"), **_of_side(a_damage, "A")}
    return Verification(a.uri, b.uri, tuple(_verdicts(a, b, in_a, in_b, damaged)))


def _of_side(damage: Mapping[str, str], side: str) -> dict[str, str]:
    return {name: f"{side}: {text}" for name, text in damage.items()}


def _not_as_recorded(reader: Reader, found: Mapping[str, str], side: str) -> dict[str, str]:
    return {
        name: f"{side}: {_CHANGED} ({reader.tensors[name].digest})"
        for name, digest in found.items()
        if reader.tensors[name].digest not in (None, digest)
    }


def _verdicts(
    a: Reader,
    b: Reader,
    in_a: Mapping[str, str],
    in_b: Mapping[str, str],
    damaged: Mapping[str, str],
) -> Iterator[TensorVerdict]:
    for name, tensor in a.tensors.items():
        found = in_a.get(name), in_b.get(name)
        if name not in b.tensors:
            yield TensorVerdict(name, "only in A", None, None, f"B has no tensor {name!r}")
        elif detail := _unlike(tensor, b.tensors[name]):
            yield TensorVerdict(name, "different", None, None, detail)
        elif name in damaged:
            yield TensorVerdict(name, "damaged", *found, damaged[name])
        elif in_a[name] != in_b[name]:
            yield TensorVerdict(name, "different", *found, "the stored bits differ")
        else:
            yield TensorVerdict(name, "equal", *found)
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
    damage: dict[str, str] = {}
    stored = tensor_digests(a, limits, None, progress, damage=damage, stage="reading")
    return Verification(
        a.uri,
        None,
        tuple(
            TensorVerdict(n, "damaged", None, t.digest, damage[n])
            if n in damage
            else _recorded(n, stored[n], t)
            for n, t in a.tensors.items()
        ),
    )


_CHANGED = "the stored bits are not those that were recorded when it was written"


def _recorded(name: str, stored: str, tensor: StoredTensor) -> TensorVerdict:
    if tensor.digest is not None:
        status: Status = "recorded" if stored == tensor.digest else "different"
        detail = "" if stored == tensor.digest else _CHANGED
        return TensorVerdict(name, status, stored, tensor.digest, detail)
    if tensor.encoding.checksum:
        return TensorVerdict(name, "checksum", stored, None, "each chunk has its own CRC32C")
    return TensorVerdict(
        name, "not recorded", stored, None, "no digest was recorded when it was written"
    )
