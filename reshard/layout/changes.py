"""Changes: the select, drop, rename and cast rules of a conversion, as written. CastRule: a parsed cast rule.

A cast rule is ``WHAT=DTYPE`` or ``WHAT=DTYPE:saturate``. If WHAT is one of the words ``bool``, ``int``, ``float`` and
``complex``, the whole name of a dtype or a short one (``bf16``), the rule applies to every tensor of that dtype. Any other text is a regular
expression that is searched in names: ``(float)`` or ``^float$`` match the name.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct

from reshard.errors import PlanError
from reshard.geometry.dtypes import DTYPES, PACKED, SHORT_NAMES, STORED_DTYPES, dtype_name

if TYPE_CHECKING:
    from reshard.patterns.compile import Counts

KINDS = ("bool", "int", "float", "complex")
SATURATE = ":saturate"


class Changes(Struct, frozen=True):
    """Rules over tensor names; each is a regular expression that is searched in the source's name.

    Attributes:
        rename: pairs of pattern and replacement, which may use groups (``\\1``).
        cast: pairs of a pattern or a kind of dtype, and a dtype name (see above).
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


class Cast(Struct, frozen=True):
    """The cast of one tensor.

    Attributes:
        saturate: True if values beyond the largest finite one become that one.
    """

    dtype: str
    saturate: bool = False


class CastRule(Struct, frozen=True):
    """A parsed cast rule.

    Attributes:
        what: the left side, as written.
        dtypes: the dtypes that ``what`` means; empty for a regular expression.
        to: the dtype that it casts to.
        saturate: True if values beyond the largest finite one become that one.
    """

    what: str
    dtypes: frozenset[str]
    to: str
    saturate: bool

    @property
    def text(self) -> str:
        """The rule in messages: a pattern in quotes, a dtype without."""
        what = self.what if self.dtypes else repr(self.what)
        return f"cast {what}={self.to}{SATURATE if self.saturate else ''}"


@lru_cache
def kind_of(dtype: str) -> str:
    """``"bool"``, ``"int"`` (signed or not), ``"float"`` (bfloat16 and float8 too) or ``"complex"``."""
    if dtype.startswith("uint"):
        return "int"
    return next((kind for kind in KINDS if dtype.startswith(kind)), "float")


def names_dtypes(what: str) -> bool:
    """True if the left side of a rule means dtypes, and not a pattern.

    >>> names_dtypes("float"), names_dtypes("bfloat16"), names_dtypes("(float)")
    (True, True, False)
    """
    return what in KINDS or what in DTYPES or what in PACKED


def full_name(dtype: object) -> str:
    """The full name of a dtype, such as ``bfloat16`` for ``bf16`` or ``jnp.bfloat16``; other text is unchanged.

    >>> full_name("bf16"), full_name("fp16:saturate"), full_name("kernel$")
    ('bfloat16', 'float16:saturate', 'kernel$')
    """
    if not isinstance(dtype, str):
        return dtype_name(dtype) or str(dtype)
    name = dtype.removesuffix(SATURATE)
    return SHORT_NAMES.get(name, name) + dtype[len(name) :]


def left_side_for(name: str) -> str:
    """The left side of a rule for this tensor, for messages that propose one."""
    return f"^{name}$" if names_dtypes(full_name(name)) else name


def parse_cast(what: str, to: str, counts: Counts | None = None) -> CastRule:
    """The parsed rule. Raises PlanError for a pattern that does not compile and for an unknown dtype."""
    from reshard.patterns.compile import compile_pattern, shown

    dtype, saturate = parse_target(what, to)
    known = (*DTYPES, *PACKED)
    dtypes = frozenset(d for d in known if what in (d, kind_of(d))) if names_dtypes(what) else ()
    if not dtypes:
        compile_pattern(what, f"cast {shown(what)}", PlanError, counts)
    return CastRule(what, frozenset(dtypes), dtype, saturate)


def parse_target(what: str, to: str) -> tuple[str, bool]:
    """The dtype of a rule's right side, and whether it saturates; PlanError if it is not a dtype."""
    dtype = to.removesuffix(SATURATE)
    if dtype not in DTYPES:
        raise PlanError(
            f"cast {what!r}={to!r}: no such dtype; expected one of: {', '.join(STORED_DTYPES)}"
            f" (floating ones also with {SATURATE}, or by the short names bf16, fp16, fp32, fp64)"
        )
    if dtype != to and kind_of(dtype) != "float":
        raise PlanError(
            f"cast {what!r}={to!r}: only floating dtypes saturate; leave {SATURATE!r} out"
        )
    return dtype, dtype != to


def refuse_unstored(rules: Sequence[tuple[str, str]]) -> None:
    """PlanError for a rule that casts to a dtype which no checkpoint stores."""
    for what, to in rules:
        dtype, _ = parse_target(what, to)
        if dtype not in STORED_DTYPES:
            raise PlanError(
                f"cast {what!r}={to!r}: no checkpoint stores {dtype}; expected one of: {', '.join(STORED_DTYPES)}"
            )
