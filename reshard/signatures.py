"""Options that several functions share: declared as the fields of a record, shown in the signature of each function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, Signature, get_annotations, signature
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Struct, StructMeta

_F = TypeVar("_F", bound=Callable[..., Any])

POSITIONAL, KEYWORD = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY


class OptionsMeta(StructMeta):
    """Makes records of options: their signature is shown, and an unknown name is answered with those near it."""

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

        # inspect.signature takes the attribute; the type of a function does not declare it.
        checked.__signature__ = shown  # type: ignore[attr-defined]
        return cast("_F", checked)

    return decorate


def _with_options(own: Signature, options: Signature) -> Signature:
    """A signature whose last parameter, ``**options``, is replaced by the keyword arguments of another."""
    *kept, _ = own.parameters.values()
    more = [p for p in options.parameters.values() if p.kind is KEYWORD]
    return own.replace(parameters=[*kept, *more])


def _check_names(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises TypeError for the first name that is not known."""
    names = [name for name in known if name != "self"]
    for name in given:
        if name not in names:
            from difflib import get_close_matches

            near = get_close_matches(name, names)
            raise TypeError(
                f"{function}() got an unexpected keyword argument {name!r}; "
                + (f"did you mean {' or '.join(near)}?" if near else f"expected {', '.join(names)}")
            )
