"""Collects every mismatch between a checkpoint and ``like``, and raises one error.

If all names are missing but exist under another prefix (an item, or ``params/``), a hint says how to fit them. For tensors whose
dtype does not fit, a line names the cast rule that converts them: one line for all that one rule converts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

from msgspec import Struct

from reshard.errors import TreeError
from reshard.layout.changes import kind_of, left_side_for
from reshard.layout.prefixes import prefixes_above, surplus_prefix, with_folders

Section = Literal["missing", "unexpected", "unplaced", "idle", "kind", "shape", "dtype"]

SHOWN = 20
"""Lines per section; the rest is counted."""

SHOWN_WITH_HINT = 3
"""Lines per section after a hint, which explains all of them."""

_TITLES: dict[Section, str] = {
    "missing": "asked for, but not in the checkpoint",
    "unexpected": "in the checkpoint, but not asked for",
    "unplaced": "without a sharding in the tree of layouts",
    "idle": "named by the tree of layouts, but not restored",
    "kind": "of another kind",
    "shape": "of another shape",
    "dtype": "of another dtype",
}
_REMEDIES: dict[Section, str] = {
    "missing": "rename= gives stored leaves other names, missing='keep' leaves these as they are",
    "unexpected": "unexpected='ignore' leaves them out, and so does drop=",
    "unplaced": "None leaves a tensor on jax's default device",
}


class Mismatches:
    """Mismatches by section; ``refuse`` raises one TreeError for all of them."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._hints: list[str] = []
        self._found: dict[Section, list[str]] = {section: [] for section in _TITLES}
        self._counts = dict.fromkeys(_TITLES, 0)

    def add(self, section: Section, line: str, count: int = 1) -> None:
        """Adds a line about ``count`` leaves."""
        self._found[section].append(line)
        self._counts[section] += count

    def hint(self, text: str) -> None:
        """Adds a likely cause of all mismatches, which comes first and shortens the lists; "" adds nothing."""
        self._hints += [text] if text else []

    def refuse(self) -> None:
        """Raises TreeError if there is any mismatch."""
        sections = [self._section(s) for s in _TITLES if self._found[s]]
        if sections:
            raise TreeError(
                f"the request does not fit the checkpoint {self._where}:\n"
                + "\n".join([*(f"  {hint}" for hint in self._hints), *sections])
            )

    def _section(self, section: Section) -> str:
        found = self._found[section]
        shown = SHOWN_WITH_HINT if self._hints else SHOWN
        lines = [f"    {line}" for line in found[:shown]]
        if len(found) > shown:
            lines.append(f"    … and {len(found) - shown} more")
        remedy = f" ({_REMEDIES[section]})" if section in _REMEDIES else ""
        return "\n".join([f"  {_TITLES[section]}: {self._counts[section]}{remedy}", *lines])


def target_hint(names: Collection[str], stored: Sequence[str], items: Collection[str]) -> str:
    """A hint on how to restore a target whose names are all missing; "" if no prefix makes them fit.

    Args:
        names: those of the target.
        items: the checkpoint's items whose names are the first key of their leaves' names.
    """
    above = prefixes_above(names, stored)
    if above:
        hows = " or ".join(_how(prefix, stored, items) for prefix in above)
        return f"{_every(names)} there below {' and below '.join(map(repr, above))}: {hows}"
    surplus = surplus_prefix(names, stored)
    if surplus is None:
        return ""
    return (
        f"{_every(names)} there without {surplus!r}: rename=[('^', {surplus!r})] puts it before the names of the "
        "checkpoint"
    )


def layout_hint(keys: Collection[str], stored: Sequence[str]) -> str:
    """A hint on how to change a tree of layouts that has no key of the checkpoint; "" if no prefix makes it fit."""
    there = with_folders(stored)
    above = prefixes_above(keys, there)
    if above:
        return f"the tree of layouts begins below {above[0]!r} of the checkpoint; put it below that key"
    surplus = surplus_prefix(keys, there)
    if surplus is None:
        return ""
    return f"the checkpoint's names begin below {surplus!r} of the tree of layouts; give the part below that key"


def _every(names: Collection[str]) -> str:
    return f"every one of the {len(names)} names is" if len(names) > 1 else "the name is"


def _how(prefix: str, stored: Sequence[str], items: Collection[str]) -> str:
    """The arguments that remove a prefix."""
    first, _, rest = prefix.partition("/")
    if first in items:
        return f"pass item={first!r}" + (f" and {_rename(rest)}" if rest else "")
    others = [name for name in stored if not name.startswith(prefix)]
    select = f"select=['^{re.escape(prefix)}'] and " if others else ""
    return f"pass {select}{_rename(prefix)}"


def _rename(prefix: str) -> str:
    return f"rename=[('^{re.escape(prefix)}', '')]"


NAMED = 3
"""Tensors that a line names; the rest is counted."""


_ONE = {"them": "it", "stay": "it stays", "a": "a ", "s": ""}
_SEVERAL = {"them": "them", "stay": "they stay", "a": "", "s": "s"}


class WantedDtype(Struct, frozen=True):
    """The dtype that a tensor must get.

    Attributes:
        narrowed: the way to avoid a narrowing by jax, with the keys of ``_ONE``; "" where the caller asks for ``wanted``.
        needs_cast: true if only a cast rule converts it.
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
    """The left side of a rule by dtype that gives every tensor its wanted dtype; "" if there is none."""
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
