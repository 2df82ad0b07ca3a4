"""The arguments that several public functions take: checked, and options declared as fields of a record, shown in each signature."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, Signature, get_annotations, signature
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from msgspec import Struct, StructMeta

from reshard.errors import LayoutError, PlanError, StorageError
from reshard.geometry.dtypes import dtype_name
from reshard.geometry.sizes import parse_bytes
from reshard.layout.changes import Changes, full_name

Unlisted = Literal["leave", "include"]
"""Treatment of tensors and files that neither an index nor the names of files count among the model: leave them out and
warn, or refuse if that is not clear; or take them."""

Dequantized = Literal["bfloat16", "float32"]
"""The dtypes of dequantised weights."""

MissingChunks = Literal["refuse", "warn", "allow"]
"""Treatment of chunks that are not stored: raise an error; take the fill value, with or without a warning."""

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

DeltaEncoding = Literal["xor", "overwrite"]
"""Content of a payload: the XOR of old and new bytes; or the positions and new values of the bytes that differ."""

DeltaReceiver = Literal["pull_weights", "modelexpress"]
"""The programs that receive a delta: those that read the layout of SGLang's ``pull_weights``, or ModelExpress."""

DeltaChecksum = Literal["xxh3-128", "blake3", "adler32"]
"""The checksums in a delta. Only BLAKE3 finds deliberate changes."""


def path_of(what: str, path: Path) -> str:
    """A path as text; StorageError for anything that is not a path."""
    if not isinstance(path, str | bytes | os.PathLike):
        raise StorageError(f"the {what} is {path!r}; expected a path")
    return os.fsdecode(path)


def adapter_of(text: str) -> tuple[str, float | None]:
    """The folder of an adapter, and the scale that the user gave, from ``ADAPTER`` or ``ADAPTER=SCALE``; None for none.

    >>> adapter_of("adapter"), adapter_of("lora/r=8=0.5")
    (('adapter', None), ('lora/r=8', 0.5))
    """
    path, equals, number = text.rpartition("=")
    try:
        return (path, float(number)) if equals else (text, None)
    except ValueError:
        return text, None


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


def check_positive(name: str, value: Any, what: str, *, has_default: bool = True) -> None:
    """Raises PlanError unless ``value`` is a whole number of at least 1; ``what`` names the counted things."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PlanError(
            f"{name} is {value!r}; expected a whole number of at least 1 ({what})"
            + (", or leave it out for the default" if has_default else "")
        )


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raises PlanError unless ``value`` is one of the choices."""
    if value not in choices:
        raise PlanError(f"{name} is {value!r}; expected one of {', '.join(map(repr, choices))}")


def check_missing_chunks(asked: object) -> None:
    """Raises PlanError unless this is a MissingChunks, or None."""
    check_choice("missing_chunks", asked, (None, *get_args(MissingChunks)))


_F = TypeVar("_F", bound=Callable[..., Any])

POSITIONAL, KEYWORD = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY


class OptionsMeta(StructMeta):
    """Makes records of options: shows their signature, and answers an unknown name with those near it."""

    if not TYPE_CHECKING:  # type checkers take the arguments from the fields

        def __call__(cls, *args: Any, **given: Any) -> Any:  # noqa: N805 - of a metaclass: the first argument is a class
            """A record; TypeError for a name that is no field."""
            _check_names(cls.__name__, given, cls.__struct_fields__)
            return super().__call__(*args, **given)

        @property
        def __signature__(cls) -> Signature:  # noqa: N805 - as above
            """The fields; msgspec's own would look up their types, which may be known to type checkers only."""
            names, defaults = cls.__struct_fields__, cls.__struct_defaults__
            types = {}
            for owner in reversed(cls.__mro__):
                types |= get_annotations(owner)
            required = len(names) - len(defaults)
            first = [
                Parameter(name, POSITIONAL, annotation=types[name]) for name in names[:required]
            ]
            rest = [
                Parameter(name, KEYWORD, default=default, annotation=types[name])
                for name, default in zip(names[required:], defaults, strict=True)
            ]
            return Signature([*first, *rest])


def takes_options(record: type[Struct]) -> Callable[[_F], _F]:
    """Makes a function show the fields of ``record`` in place of its ``**options``.

    Its signature has them with their defaults, and an unknown name is answered with those near it.
    """

    def decorate(function: _F) -> _F:
        shown = _with_options(signature(function), signature(record))

        @wraps(function)
        def checked(*args: Any, **given: Any) -> Any:
            _check_names(function.__name__, given, shown.parameters)
            return function(*args, **given)

        checked.__signature__ = shown  # type: ignore[attr-defined]  # inspect.signature takes it; no type declares it
        return cast("_F", checked)

    return decorate


def _with_options(own: Signature, options: Signature) -> Signature:
    """A signature whose last parameter, ``**options``, is replaced by the keyword arguments of another."""
    *kept, _ = own.parameters.values()
    more = [p for p in options.parameters.values() if p.kind is KEYWORD]
    return own.replace(parameters=[*kept, *more])


def _check_names(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raises TypeError for the first name that is not known."""
    for name in given:
        if name not in known or name == "self":
            from difflib import get_close_matches

            names = [name for name in known if name != "self"]
            near = get_close_matches(name, names)
            raise TypeError(
                f"{function}() got an unexpected keyword argument {name!r}; "
                + (f"did you mean {' or '.join(near)}?" if near else f"expected {', '.join(names)}")
            )
