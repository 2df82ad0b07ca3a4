"""Changes: the select, drop, rename and cast rules of a conversion, as the user wrote them."""

from __future__ import annotations

from msgspec import Struct


class Changes(Struct, frozen=True):
    """Rules over tensor names, each a regular expression that is searched in the source's name.

    Attributes:
        rename: pairs of pattern and replacement, which may use groups (``\\1``).
        cast: pairs of a pattern, or what stands for dtypes, and a dtype name (``cast_rule`` says how).
    """

    select: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    cast: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.select or self.drop or self.rename or self.cast)

    def __add__(self, later: Changes) -> Changes:
        """These rules, then those of ``later``."""
        return Changes(
            self.select + later.select,
            self.drop + later.drop,
            self.rename + later.rename,
            self.cast + later.cast,
        )
