"""Checks the arguments that several public functions take."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from reshard.errors import LayoutError, PlanError, StorageError
from reshard.geometry.dtypes import dtype_name
from reshard.geometry.sizes import parse_bytes
from reshard.layout.changes import Changes, full_name

Unlisted = Literal["leave", "include"]
"""What to do with tensors and files that neither an index nor the names of files count among the model: leave them out and
warn, or refuse where that is not clear; or take them."""

MissingChunks = Literal["refuse", "warn", "allow"]
"""What to do where chunks of a checkpoint are not stored: raise an error; take the fill value, with or without a warning."""

if TYPE_CHECKING:
    import numpy as np

    Path = str | os.PathLike[str]
    MapLike = Path | Mapping[str, Any] | None
    Rules = Sequence[str]
    PairRules = Sequence[tuple[str, str]] | Mapping[str, str]
    DTypeLike = str | type[Any] | np.dtype[Any]
    """A name, or a dtype or scalar type of numpy, ml_dtypes or jax."""
    CastRules = Sequence[tuple[DTypeLike, DTypeLike]] | Mapping[Any, DTypeLike]
    """From patterns, or dtypes, to dtypes."""


def path_of(what: str, path: Path) -> str:
    """A path as text; StorageError for anything that is not a path."""
    if not isinstance(path, str | bytes | os.PathLike):
        raise StorageError(f"the {what} is {path!r}; expected a path")
    return os.fsdecode(path)


def changes_of(
    select: Rules | None, drop: Rules | None, rename: PairRules | None, cast: CastRules | None
) -> Changes:
    """The rules as one record; PlanError for rules of the wrong form. The patterns are checked later."""
    return Changes(
        _patterns("select", select),
        _patterns("drop", drop),
        _pairs("rename", rename, "a replacement", _is_text),
        cast_pairs(cast),
    )


def cast_pairs(cast: CastRules | None) -> tuple[tuple[str, str], ...]:
    """The cast rules as text, with the full names of dtypes; PlanError for rules of the wrong form."""
    pairs = _pairs("cast", cast, "a dtype", _is_text_or_dtype)
    return tuple((full_name(what), full_name(to)) for what, to in pairs)


def _patterns(kind: str, rules: Rules | None) -> tuple[str, ...]:
    if rules is None:
        return ()
    given = () if isinstance(rules, str) or not isinstance(rules, Iterable) else tuple(rules)
    if (rules and not given) or not all(isinstance(pattern, str) for pattern in given):
        raise PlanError(
            f"{kind} is {rules!r}; expected a list of regular expressions such as ['^params/']"
        )
    return given


def _pairs(
    kind: str, rules: CastRules | None, to: str, is_part: Callable[[object], bool]
) -> tuple[tuple[Any, Any], ...]:
    if rules is None:
        return ()
    items = rules.items() if isinstance(rules, Mapping) else rules
    pairs = () if isinstance(items, str) or not isinstance(items, Iterable) else tuple(items)
    if (rules and not pairs) or not all(_is_pair(pair, is_part) for pair in pairs):
        raise PlanError(
            f"{kind} is {rules!r}; expected pairs of a regular expression and {to}, such as [('^a/', ...)]"
        )
    return tuple((pattern, new) for pattern, new in pairs)


def _is_pair(rule: object, is_part: Callable[[object], bool]) -> bool:
    return isinstance(rule, tuple | list) and len(rule) == 2 and all(map(is_part, rule))


def _is_text(part: object) -> bool:
    return isinstance(part, str)


def _is_text_or_dtype(part: object) -> bool:
    return isinstance(part, str) or dtype_name(part) is not None


def bytes_of(name: str, size: int | str | None) -> int | None:
    """Bytes given as a number or as text such as ``"512MiB"``; PlanError for other text."""
    try:
        return parse_bytes(size) if isinstance(size, str) else size
    except LayoutError as error:
        raise PlanError(f"{name}: {error}") from None


def check_positive(name: str, value: Any, what: str) -> None:
    """Raises PlanError unless ``value`` is a whole number of at least 1; ``what`` says of what."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PlanError(
            f"{name} is {value!r}; expected a whole number of at least 1 ({what}), or leave it out "
            "for the default"
        )


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raises PlanError unless ``value`` is one of the choices."""
    if value not in choices:
        raise PlanError(f"{name} is {value!r}; expected one of {', '.join(map(repr, choices))}")


def check_missing_chunks(asked: object) -> None:
    """Raises PlanError unless this is a MissingChunks, or None."""
    check_choice("missing_chunks", asked, (None, *get_args(MissingChunks)))
