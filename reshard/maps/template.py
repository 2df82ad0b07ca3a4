"""Template: the names of tensors in a rule, such as ``model.layers.{l}.mlp.experts.{x}.w1``.

A hole is an index, or arithmetic with one: ``{2*i+1}``, ``{i+first}``. In ``{6*i+j}`` j is the remainder of a division by 6.
``{{`` and ``}}`` are braces of the name itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial

from msgspec import Struct

from reshard.maps.expression import Expression, Number, parse_expression
from reshard.planning.rules import MAX_NAME

_HOLE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_NUMBER = re.compile(r"\d+", re.ASCII)
_DIGITS = re.compile(r"[\d{]+", re.ASCII)


Namer = Callable[[Mapping[str, int]], str]


def parse_template(text: str) -> Template:
    """The template in a text; ValueError saying what is wrong with it."""
    if len(text) > MAX_NAME:
        raise ValueError(
            f"the name {text[:40]!r}… has {len(text):,} characters; write at most {MAX_NAME:,}"
        )
    parts: list[str | Expression] = [""]
    end = 0
    for found in _HOLE.finditer(text):
        _append(parts, text[end : found.start()])
        end = found.end()
        if found[0] in ("{{", "}}"):
            _append(parts, found[0][0])
        elif found[1] is None:
            raise ValueError(
                f"{text!r} has {found[0]!r} without its other brace; double it if the name has it"
            )
        else:
            if _is_ambiguous(parts):
                raise ValueError(
                    f"{text!r} has two indices side by side, whose digits cannot be told apart"
                )
            parts.append(_hole(text, found[1]))
    _append(parts, text[end:])
    return Template(text, tuple(part for part in parts if part != ""))


def _is_ambiguous(parts: list[str | Expression]) -> bool:
    """True if a hole behind these parts has only digits between it and the one before; matching would try every way."""
    last = parts[-1]
    if isinstance(last, Expression):
        return True
    return len(parts) > 1 and last.isascii() and last.isdigit()


def _append(parts: list[str | Expression], literal: str) -> None:
    if not literal:
        return
    if isinstance(parts[-1], str):
        parts[-1] += literal
    else:
        parts.append(literal)


def _hole(text: str, inner: str) -> Expression:
    found = parse_expression(inner)
    if not found.names:
        raise ValueError(f"{text!r} has {{{inner}}}, which names no index; write the number itself")
    return found


class Template(Struct, frozen=True):
    """A name with indices in it.

    Attributes:
        parts: text and the arithmetic of indices, by turns.
    """

    text: str
    parts: tuple[str | Expression, ...]

    @property
    def holes(self) -> tuple[Expression, ...]:
        """The arithmetic of its indices."""
        return tuple(part for part in self.parts if isinstance(part, Expression))

    def indices(self, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """The names of its indices: of a hole with several names those that are no given sizes.

        ValueError where they do not follow from a number.
        """
        found = (name for hole in self.holes for name in _indices_of(hole, sizes))
        return tuple(dict.fromkeys(found))

    def all_names(self) -> tuple[str, ...]:
        """Every name in its holes, sizes among them."""
        return tuple(dict.fromkeys(name for hole in self.holes for name in hole.names))

    @property
    def skeleton(self) -> str:
        """The template with each number as ``#``; names that match have the same."""
        text = "".join(part if isinstance(part, str) else "0" for part in self.parts)
        return skeleton_of(text)

    @property
    def numbers(self) -> tuple[str | None, ...]:
        """The numbers in it, as ``numbers_of`` finds those of a name that matches; None for one that has an index."""
        text = "".join(p.replace("{", "[") if isinstance(p, str) else "{" for p in self.parts)
        return tuple(None if "{" in number else number for number in _DIGITS.findall(text))

    def match(self, name: str, sizes: Mapping[str, int]) -> dict[str, int] | None:
        """The indices in a name; None where it does not match as a whole, or an index is beyond a size that is given."""
        found = self.matcher(sizes)(name)
        return None if found is None else dict(zip(self.indices(sizes), found, strict=True))

    def matcher(self, sizes: Mapping[str, int]) -> Callable[[str], tuple[int, ...] | None]:
        """``match`` for many names, without the names of the indices: few numbers are in many of them, and each is solved once."""
        if not self.holes:
            return lambda name: () if self.parts == (name,) else None
        fullmatch, holes = _pattern(self).fullmatch, self.holes
        slots = {index: slot for slot, index in enumerate(self.indices(sizes))}
        unknown = (-1,) * len(slots)

        @cache
        def solved(place: int, digits: str) -> Sequence[tuple[int, int]] | None:
            found = _solved(holes[place], int(digits), sizes)
            is_none = found is None or any(n >= sizes.get(i, n + 1) for i, n in found.items())
            return None if is_none or found is None else [(slots[i], n) for i, n in found.items()]

        def match(name: str) -> tuple[int, ...] | None:
            found = fullmatch(name)
            if found is None:
                return None
            values = [*unknown]
            for place, digits in enumerate(found.groups()):
                numbers = solved(place, digits)
                if numbers is None:
                    return None
                for slot, number in numbers:
                    if values[slot] not in (-1, number):
                        return None
                    values[slot] = number
            return tuple(values)

        return match

    def name(self, values: Mapping[str, int]) -> str:
        """The name with these indices; ValueError for one that is no whole number of at least 0."""
        return self.namer()(values)

    def namer(self) -> Namer:
        """``name`` for many indices, in a fifth of the time."""
        form, solving = "", []
        for number, part in enumerate(self.parts):
            if isinstance(part, str):
                form += part.replace("{", "{{").replace("}", "}}")
            elif part.is_name:
                form += f"{{{part.text}}}"
            else:
                form += f"{{#{number}}}"
                solving.append((f"#{number}", part.names, cache(partial(_text, part))))
        if not solving:
            return form.format_map

        def name(values: Mapping[str, int]) -> str:
            own = {key: text(*[values[n] for n in names]) for key, names, text in solving}
            return form.format_map({**values, **own})

        return name

    def under(self, prefix: str) -> Template:
        """The template below a prefix, which may have indices, too."""
        return parse_template(prefix + self.text)


@lru_cache(maxsize=4096)
def _pattern(template: Template) -> re.Pattern[str]:
    parts = (re.escape(p) if isinstance(p, str) else "(0|[1-9][0-9]{0,8})" for p in template.parts)
    return re.compile("".join(parts))


def _indices_of(hole: Expression, sizes: Mapping[str, int]) -> tuple[str, ...]:
    if len(hole.names) == 1:
        return hole.names
    left = tuple(name for name in hole.names if name not in sizes)
    if len(left) != 1 and _block(hole, _given(hole, sizes)) is None:
        raise ValueError(
            f"{{{hole.text}}} must have one index, or two as in {{6*i+j}}; give {_other(hole, left)} a size (sizes)"
        )
    return left


def _solved(hole: Expression, number: int, sizes: Mapping[str, int]) -> dict[str, int] | None:
    """The indices of a hole that has this number; None where none have it."""
    if len(hole.names) > 1:
        block = _block(hole, _given(hole, sizes))
        if block is not None:
            return block.solved(hole, number, sizes)
    (left,) = _indices_of(hole, sizes)
    value = hole.solved(left, number, sizes)
    return None if value is None else {left: value}


def _text(hole: Expression, *values: int) -> str:
    return str(hole.whole(dict(zip(hole.names, values, strict=True))))


class _Block(Struct, frozen=True):
    """The i, j, 6 and 1 of ``6*i+j+1``: j is an index inside of blocks, if it is smaller than those."""

    outer: str
    inner: str
    size: int
    first: Number

    def solved(
        self, hole: Expression, number: int, sizes: Mapping[str, int]
    ) -> dict[str, int] | None:
        """Both indices of the hole that has this number."""
        at = number - self.first
        if at < 0 or at != int(at):
            return None
        outer, inner = divmod(int(at), self.size)
        found = {self.outer: outer, self.inner: inner}
        return found if hole.value({**sizes, **found}) == number else None


def _given(hole: Expression, sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple((name, sizes[name]) for name in hole.names if name in sizes)


@lru_cache(maxsize=4096)
def _block(hole: Expression, given: tuple[tuple[str, int], ...]) -> _Block | None:
    """The blocks that a hole with two indices counts, by the given sizes of its names; None where it counts none."""
    sizes = dict(given)
    left = [name for name in hole.names if name not in sizes]
    if len(left) != 2:
        return None
    at = {(i, j): hole.value({**sizes, left[0]: i, left[1]: j}) for i in range(3) for j in range(3)}
    steps = at[1, 0] - at[0, 0], at[0, 1] - at[0, 0]
    if any(at[i, j] != at[0, 0] + i * steps[0] + j * steps[1] for i, j in at):
        return None
    outer = 0 if steps[1] == 1 else 1
    size = steps[outer]
    if steps[1 - outer] != 1 or size < 2 or size != int(size):
        return None
    return _Block(left[outer], left[1 - outer], int(size), at[0, 0])


def _other(hole: Expression, left: tuple[str, ...]) -> str:
    return " or ".join(map(repr, left[1:] or hole.names))


def skeleton_of(name: str) -> str:
    """A name with each number as ``#``."""
    return _NUMBER.sub("#", name)


def numbers_of(name: str) -> list[str]:
    """The numbers in a name, in order."""
    return _NUMBER.findall(name)
