"""Hints for names that are all missing but exist under another prefix: an item, or ``params/``."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from reshard.layout.prefixes import prefixes_above, surplus_prefix, with_folders


def target_hint(asked: Collection[str], stored: Sequence[str], items: Collection[str]) -> str:
    """How a target whose names are all missing would fit; "" where no prefix makes them fit.

    Args:
        items: the checkpoint's items whose names begin those of their leaves.
    """
    above = prefixes_above(asked, stored)
    if above:
        hows = " or ".join(_how(prefix, stored, items) for prefix in above)
        return f"{_every(asked)} there below {' and below '.join(map(repr, above))}: {hows}"
    surplus = surplus_prefix(asked, stored)
    if surplus is None:
        return ""
    return (
        f"{_every(asked)} there without {surplus!r}: rename=[('^', {surplus!r})] puts it before the names of the "
        "checkpoint"
    )


def layout_hint(keys: Collection[str], stored: Sequence[str]) -> str:
    """How a tree of layouts of which no key is in the checkpoint would fit; "" where no prefix makes it fit."""
    there = with_folders(stored)
    above = prefixes_above(keys, there)
    if above:
        return f"the tree of layouts begins below {above[0]!r} of the checkpoint; put it below that key"
    surplus = surplus_prefix(keys, there)
    if surplus is None:
        return ""
    return f"the checkpoint's names begin below {surplus!r} of the tree of layouts; give what is below that key"


def _every(asked: Collection[str]) -> str:
    return f"every one of the {len(asked)} names is" if len(asked) > 1 else "the name is"


def _how(prefix: str, stored: Sequence[str], items: Collection[str]) -> str:
    """The arguments that take a prefix off."""
    first, _, rest = prefix.partition("/")
    if first in items:
        return f"pass item={first!r}" + (f" and {_rename(rest)}" if rest else "")
    others = [name for name in stored if not name.startswith(prefix)]
    select = f"select=['^{re.escape(prefix)}'] and " if others else ""
    return f"pass {select}{_rename(prefix)}"


def _rename(prefix: str) -> str:
    return f"rename=[('^{re.escape(prefix)}', '')]"
