"""Law: the words for a factor, by the sizes of its rule in all examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence


def _rounded(value: float) -> float:
    import ml_dtypes

    return float(ml_dtypes.bfloat16(value))


_FORMS: Sequence[tuple[str, Callable[[float], float]]] = (
    ("{}", lambda p: p),
    ("1/({})", lambda p: 1 / p),
    ("sqrt({})", math.sqrt),
    ("1/sqrt({})", lambda p: 1 / math.sqrt(p)),
    # Gemma 3 scales its embedding by a root that was rounded first.
    ("bfloat16(sqrt({}))", lambda p: _rounded(math.sqrt(p))),
    ("1/bfloat16(sqrt({}))", lambda p: 1 / _rounded(math.sqrt(p))),
)

_NEAR = 1e-3
"""How far a factor that was read off rounded elements may be from its law."""


def laws(
    factors: Sequence[float],
    groups: Sequence[Sequence[str]],
    sizes: Mapping[str, Sequence[int]],
    hints: Mapping[str, Sequence[int]],
) -> list[str]:
    """The words for a factor, the likeliest first; none where its examples have nothing in common.

    Args:
        factors: one in each example.
        groups: names of dimensions that stand side by side in the shape.
        sizes: of them in each example; ``hints``: other sizes that were named.
    """
    is_plain = all(abs(f - factors[0]) <= _NEAR * abs(factors[0]) for f in factors)
    plain = [_number(factors[0])] if is_plain else []
    found = list(_found(_neighbours(groups), sizes, factors))
    found = found or list(_found([(name,) for name in hints], hints, factors))
    is_power = is_plain and math.frexp(abs(factors[0]))[0] == 0.5
    return [*plain, *found] if is_power else [*found, *plain]


def _neighbours(groups: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    runs = {
        tuple(sorted(group[a:b]))
        for group in groups
        for a in range(len(group))
        for b in range(a + 1, len(group) + 1)
    }
    return sorted(runs, key=lambda run: (len(run), run))


def _found(
    runs: Sequence[tuple[str, ...]], sizes: Mapping[str, Sequence[int]], factors: Sequence[float]
) -> Iterator[str]:
    """Those that are near, the nearest first."""
    found: list[tuple[float, str]] = []
    seen: set[tuple[tuple[str, ...], float]] = set()
    for run in runs:
        products = [math.prod(each) for each in zip(*(sizes[name] for name in run), strict=True)]
        for words, form in _FORMS:
            pairs = zip(map(form, products), factors, strict=True)
            apart = max(abs(value - f) / abs(f) for value, f in pairs)
            if apart <= _NEAR and (run, form(products[0])) not in seen:
                seen.add((run, form(products[0])))
                found.append((round(apart, 9), words.format("*".join(run))))
    yield from (words for _, words in sorted(found, key=lambda one: one[0]))


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
