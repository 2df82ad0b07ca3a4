"""Says which cast rule converts the tensors whose dtype does not fit: one line for all that one rule converts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from reshard.layout.changes import kind_of, left_side_for

NAMED = 3
"""Tensors that a line names; the rest is counted."""


_ONE = {"them": "it", "stay": "it stays", "a": "a ", "s": ""}
_SEVERAL = {"them": "them", "stay": "they stay", "a": "", "s": "s"}


class WantedDtype(Struct, frozen=True):
    """The dtype that a tensor must get.

    Attributes:
        narrowed: how a narrowing by jax is avoided, with the keys of ``_ONE``; "" where the caller asks for ``wanted``.
        needs_cast: whether only a cast rule converts it.
    """

    name: str
    stored: str
    wanted: str
    narrowed: str = ""
    needs_cast: bool = False


class _Group(Struct, frozen=True):
    """Tensors that one rule converts; "" for a single tensor, which is named."""

    rule: str
    members: list[WantedDtype]


def cast_lines(tensors: Sequence[WantedDtype]) -> Iterator[tuple[str, int]]:
    """Lines about the tensors that need a cast, each with the number of these tensors.

    ``tensors`` are all that are restored and that no rule casts: a rule is advised only if it is right for all of them.
    """
    groups: dict[tuple[str, ...], _Group] = {}
    for tensor in tensors:
        if tensor.needs_cast:
            rule = _rule(tensor, tensors)
            key = (rule, tensor.wanted, tensor.narrowed, "" if rule else tensor.name)
            groups.setdefault(key, _Group(rule, [])).members.append(tensor)
    for group in groups.values():
        yield _line(group), len(group.members)


def _rule(tensor: WantedDtype, tensors: Sequence[WantedDtype]) -> str:
    """The left side of a rule by dtype that gives every tensor what it must get; "" if there is none."""
    kind = kind_of(tensor.stored)
    if kind_of(tensor.wanted) != kind:
        return ""  # only a rule with the tensor's name changes the kind
    of_kind = {t.wanted for t in tensors if kind_of(t.stored) == kind}
    if of_kind == {tensor.wanted} and not tensor.narrowed:
        return kind
    of_dtype = {t.wanted for t in tensors if t.stored == tensor.stored}
    return tensor.stored if of_dtype == {tensor.wanted} else ""


def _line(group: _Group) -> str:
    first, count = group.members[0], len(group.members)
    if count == 1:
        what, them = f"{first.name} is {first.stored}", "it"
        cast = f"cast=[({left_side_for(first.name)!r}, {first.wanted!r})]"
    else:
        stored = " or ".join(dict.fromkeys(t.stored for t in group.members))
        what, them = f"{count} tensors are {stored}", "them"
        cast = f"cast={{{group.rule!r}: {first.wanted!r}}}"
    some = ", ".join(t.name for t in group.members[:NAMED])
    names = "" if count == 1 else f" ({some}{f' and {count - NAMED} more' * (count > NAMED)})"
    if first.narrowed:
        avoided = first.narrowed.format(**(_ONE if count == 1 else _SEVERAL))
        return f"{what}, which jax would narrow to {first.wanted}{names}; {avoided}, or {cast}"
    return f"{what}, but {first.wanted} is asked for{names}; {cast} converts {them}"
