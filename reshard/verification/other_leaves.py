"""Compares leaves that are not tensors, for ``verify`` and ``diff``: strings, None and empty containers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from reshard.formats.base import Reader
from reshard.formats.contents import Leaf, StoredTensor
from reshard.formats.registry import holds_only_tensors
from reshard.verification.diff_report import LeafDiff, LeafStatus


class AllLeaves(Struct, frozen=True):
    """Every leaf of a checkpoint by name, tensors included.

    Attributes:
        only_tensors: whether the format has no place for other leaves.
    """

    tensors: Mapping[str, StoredTensor]
    leaves: Mapping[str, Leaf]
    only_tensors: bool

    @classmethod
    def of(cls, reader: Reader) -> AllLeaves:
        leaves = {leaf.name: leaf for leaf in reader.leaves}
        return cls(reader.tensors, leaves, holds_only_tensors(reader))

    def is_other(self, name: str | None) -> bool:
        """Whether there is a leaf of this name that is not a tensor."""
        return name in self.leaves and name not in self.tensors

    def what(self, name: str | None) -> str | None:
        """A description of the leaf; None if there is none."""
        if name is None or name not in self.leaves:
            return None
        if name in self.tensors:
            spec = self.tensors[name].spec
            return f"{spec.dtype} of shape {list(spec.shape)}"
        leaf = self.leaves[name]
        if leaf.is_object:
            return f"{leaf.kind} ({leaf.meta['digest']})"
        return repr(leaf.text) if leaf.text is not None else leaf.value_type or "empty"


def compare_others(
    a: AllLeaves, b: AllLeaves, names_in_b: Mapping[str, str], names: Iterable[str]
) -> Iterator[LeafDiff]:
    """The leaves of which at least one side is no tensor: those of A in its order, then those that only B has.

    Args:
        names_in_b: the name in B of each leaf of A that B should have, tensors included.
        names: those of B that are compared.
    """
    for name, partner in names_in_b.items():
        if a.is_other(name) or b.is_other(partner):
            yield _compared(a, b, name, partner)
    expected = set(names_in_b.values())
    for name in names:
        if b.is_other(name) and name not in expected:
            yield _compared(a, b, None, name)


def _compared(a: AllLeaves, b: AllLeaves, name: str | None, partner: str) -> LeafDiff:
    one, other = a.what(name), b.what(partner)
    if one is None:
        return LeafDiff(partner, "no place in A" if a.only_tensors else "only in B", one, other)
    if other is None:
        status: LeafStatus = "no place in B" if b.only_tensors else "only in A"
        return LeafDiff(name or partner, status, one, other, name)
    return LeafDiff(partner, "equal" if one == other else "different", one, other, name)
