"""Rules that were right before one or two of their words, sizes or shapes were changed at random."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from msgspec import Struct

from reshard.geometry.dtypes import numpy_dtype
from tests.maps.random_rules import RandomRule, rules

WORDS = [*"abcpq", "(a b)", "[a | b]", "[p | p]", "1", "(", ")", "|", "->", ",", ""]
LENGTHS = [1, 2, 7, "a", "2*a", "a/2", "a-1", "1/0", "1/(a-1)", "sqrt(b)", "z", 1 << 40, "2^3", -1]
NUMBERS = [0, -2, 1e300, float("nan"), float("inf"), "sqrt(a)", "1/(a-1)", "float16(1e9)", "sqrt(-a)", "z", *LENGTHS]  # fmt: skip
DTYPES = ["float32", "bfloat16", "int8", "uint8", "bool", "complex64", "float8_e4m3fn", "int4", "?"]
HOLES = ["{a}", "{b}", "{2*a+1}", "{2*a+b}", "{a-1}", "{a/2}", "{1/a}", "{a*b}", "{z}", "{", ""]
EXTENTS = [0, 1, 2, 3, 7]


class BentRule(Struct, frozen=True):
    """A map of a rule and perhaps of a copy, with sources and sizes that may not fit it."""

    map: Mapping[str, Any]
    sizes: Mapping[str, int]
    sources: Mapping[str, npt.NDArray[Any]]
    reverse: bool


@st.composite
def bent_rules(draw: st.DrawFn) -> BentRule:
    """Rules of every kind, bent."""
    one: RandomRule = draw(rules())
    reverse = draw(st.integers(0, 3)) == 0
    rule, sizes = dict(one.rule), dict(one.given_backwards if reverse else one.given)
    sources = dict(one.targets if reverse else one.sources)
    more: list[dict[str, Any]] = []
    for bend in draw(st.lists(st.sampled_from(_BENDS), min_size=1, max_size=2)):
        bend(draw, rule, sizes, sources)
    if draw(st.integers(0, 7)) == 0:
        key = draw(st.sampled_from(["from", "to"]))
        names = [*sources, str(rule.get("to")), "t/{a}", "t"]
        more = [{key: draw(st.sampled_from(names)), "same_as": draw(st.sampled_from(names))}]
    return BentRule({"map": [rule, *more]}, sizes, sources, reverse)


def _word(draw: st.DrawFn, rule: dict[str, Any], *_: Any) -> None:
    """Another word in the shape."""
    words = re.split(r"(\W)", rule.get("shape", "a -> a"))
    at = draw(st.integers(0, len(words) - 1))
    words[at] = draw(st.sampled_from(WORDS))
    rule["shape"] = "".join(words)


def _name(draw: st.DrawFn, rule: dict[str, Any], *_: Any) -> None:
    """Another index in a name, or a name less."""
    key = draw(st.sampled_from(["from", "to"]))
    names = rule.get(key) or ["u"]
    names = names if isinstance(names, list) else [names]
    at = draw(st.integers(0, len(names) - 1))
    bent = re.sub(r"\{\w+\}|$", draw(st.sampled_from(HOLES)), names[at], count=1)
    rule[key] = [*names[:at], *draw(st.sampled_from([[bent], []])), *names[at + 1 :]]


def _length(draw: st.DrawFn, rule: dict[str, Any], *_: Any) -> None:
    """A dimension that is padded or cropped to any length."""
    key, name = draw(st.sampled_from(["pad", "crop"])), draw(st.sampled_from("abcpqr"))
    rule[key] = {**rule.get(key, {}), name: draw(st.sampled_from(LENGTHS))}


def _number(draw: st.DrawFn, rule: dict[str, Any], *_: Any) -> None:
    rule[draw(st.sampled_from(["fill", "add", "multiply", "divide"]))] = draw(st.sampled_from(NUMBERS))  # fmt: skip


def _cast(draw: st.DrawFn, rule: dict[str, Any], *_: Any) -> None:
    rule["cast"] = draw(st.sampled_from(DTYPES))


def _without(draw: st.DrawFn, rule: dict[str, Any], *_: Any) -> None:
    """A key less."""
    rule.pop(draw(st.sampled_from(sorted(rule))))


def _size(draw: st.DrawFn, _rule: Any, sizes: dict[str, int], *_: Any) -> None:
    """A size more, less, or another one."""
    name = draw(st.sampled_from([*sizes, "a", "z"]))
    sizes.pop(name, None)
    if draw(st.booleans()):
        sizes[name] = draw(st.sampled_from([*EXTENTS, 1 << 40, -1]))


def _source(draw: st.DrawFn, _rule: Any, _sizes: Any, sources: dict[str, Any]) -> None:
    """A source more, less, or of another shape or dtype."""
    name = draw(st.sampled_from([*sources, "other", "s/7", "s/0"]))
    sources.pop(name, None)
    if draw(st.booleans()):
        shape = draw(st.lists(st.sampled_from(EXTENTS), max_size=4))
        sources[name] = np.zeros(shape, numpy_dtype(draw(st.sampled_from(DTYPES[:-2]))))


_BENDS = (_word, _name, _length, _length, _number, _cast, _without, _size, _source)
